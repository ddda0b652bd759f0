import io.dapr.actors.ActorId;
import io.dapr.actors.ActorMethod;
import io.dapr.actors.ActorType;
import io.dapr.actors.client.ActorClient;
import io.dapr.actors.client.ActorProxyBuilder;
import io.dapr.actors.runtime.AbstractActor;
import io.dapr.actors.runtime.ActorRuntime;
import io.dapr.actors.runtime.ActorRuntimeContext;
import io.dapr.actors.runtime.Remindable;
import io.dapr.utils.TypeRef;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.function.Predicate;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.SpringBootConfiguration;
import org.springframework.boot.autoconfigure.EnableAutoConfiguration;
import reactor.core.publisher.Mono;

/**
 * Actors by Dapr's SDK for Java that count, by calls, by a timer and by a reminder.
 *
 * <pre>
 *   Counting host PORT    runs them
 *   Counting count ID     calls one, and says what it has counted
 * </pre>
 */
public final class Counting {
  private static final Duration SOON = Duration.ofMillis(200);

  public static void main(String[] arguments) throws Exception {
    switch (arguments[0]) {
      case "host" -> {
        ActorRuntime.getInstance().registerActor(CounterActor.class);
        String port = "--server.port=" + arguments[1];
        SpringApplication.run(
            Host.class, port, "--server.address=127.0.0.1", "--spring.main.banner-mode=off");
      }
      case "count" -> {
        count(arguments[1]);
        // The threads of the SDK's client would keep the process.
        System.exit(0);
      }
      default -> throw new IllegalArgumentException(arguments[0]);
    }
  }

  /** The SDK's controller is among what Spring finds by itself. */
  @SpringBootConfiguration
  @EnableAutoConfiguration
  public static class Host {}

  /** What a counter says of itself. */
  public record Told(int count, int ticks, List<String> reminded) {}

  @ActorType(name = "Counter")
  public interface Counter {
    @ActorMethod(returns = Integer.class, name = "add")
    Mono<Integer> add(int more);

    Told told();

    void tick(boolean on);

    /** What the timer calls: the SDK finds it here alone. */
    void onTick(int step);

    void remind(boolean on);

    void fail();
  }

  public static class CounterActor extends AbstractActor implements Counter, Remindable<String> {
    private int ticks;

    public CounterActor(ActorRuntimeContext<CounterActor> context, ActorId id) {
      super(context, id);
    }

    @Override
    public Mono<Integer> add(int more) {
      return Mono.fromCallable(() -> kept("count", TypeRef.INT, 0) + more)
          .flatMap(count -> getActorStateManager().set("count", count).thenReturn(count));
    }

    @Override
    public Told told() {
      return new Told(kept("count", TypeRef.INT, 0), ticks, reminded());
    }

    @Override
    public void tick(boolean on) {
      if (on) {
        registerActorTimer("clock", "onTick", 2, SOON, SOON).block();
      } else {
        unregisterTimer("clock").block();
      }
    }

    @Override
    public void onTick(int step) {
      ticks += step;
    }

    @Override
    public void remind(boolean on) {
      if (on) {
        registerReminder("bell", "ding", SOON, SOON).block();
      } else {
        unregisterReminder("bell").block();
      }
    }

    @Override
    public TypeRef<String> getStateType() {
      return TypeRef.STRING;
    }

    @Override
    public Mono<Void> receiveReminder(String name, String state, Duration due, Duration period) {
      return Mono.fromCallable(this::reminded)
          .flatMap(
              rung -> {
                List<String> more = new ArrayList<>(rung);
                more.add(name + " " + state);
                return getActorStateManager().set("reminded", more);
              });
    }

    @Override
    public void fail() {
      throw new IllegalStateException("out of count");
    }

    private List<String> reminded() {
      return kept("reminded", new TypeRef<List<String>>() {}, List.of());
    }

    private <T> T kept(String name, TypeRef<T> type, T otherwise) {
      boolean isThere = getActorStateManager().contains(name).block();
      return isThere ? getActorStateManager().get(name, type).block() : otherwise;
    }
  }

  private static void count(String id) throws InterruptedException {
    try (ActorClient client = new ActorClient()) {
      ActorProxyBuilder<Counter> counters = new ActorProxyBuilder<>(Counter.class, client);
      Counter counter = counters.build(new ActorId(id));
      check(counter.add(3).block() == 3, "3");
      check(counter.add(4).block() == 7, "7");
      check(counters.build(new ActorId(id + " other")).add(1).block() == 1, "1");
      try {
        counter.fail();
        throw new AssertionError("a method that throws fails");
      } catch (RuntimeException error) {
        check(error.getMessage().contains("error from actor service: (500)"), error);
      }

      counter.tick(true);
      until(counter, told -> told.ticks() >= 4);
      counter.tick(false);
      counter.remind(true);
      Told told = until(counter, now -> now.reminded().size() >= 2);
      check(told.reminded().get(0).equals("bell ding"), told);
      counter.remind(false);
      told = counter.told();
      Thread.sleep(600);
      check(counter.told().equals(told), told);
      System.out.println(told.count());
    }
  }

  private static Told until(Counter counter, Predicate<Told> holds) throws InterruptedException {
    for (long began = System.nanoTime(); ; Thread.sleep(50)) {
      Told told = counter.told();
      if (holds.test(told)) {
        return told;
      }
      check(System.nanoTime() - began < Duration.ofSeconds(30).toNanos(), told);
    }
  }

  private static void check(boolean holds, Object told) {
    if (!holds) {
      throw new AssertionError(told);
    }
  }
}
