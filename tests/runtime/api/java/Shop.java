import com.google.protobuf.Any;
import com.google.protobuf.ByteString;
import com.google.protobuf.Empty;
import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import io.dapr.client.DaprClient;
import io.dapr.client.DaprClientBuilder;
import io.dapr.client.domain.HttpExtension;
import io.dapr.v1.AppCallbackGrpc;
import io.dapr.v1.AppCallbackHealthCheckGrpc;
import io.dapr.v1.CommonProtos.InvokeRequest;
import io.dapr.v1.CommonProtos.InvokeResponse;
import io.dapr.v1.DaprAppCallbackProtos.HealthCheckResponse;
import io.grpc.Context;
import io.grpc.Contexts;
import io.grpc.Metadata;
import io.grpc.ServerBuilder;
import io.grpc.ServerCall;
import io.grpc.ServerCallHandler;
import io.grpc.ServerInterceptor;
import io.grpc.Status;
import io.grpc.stub.StreamObserver;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.function.Function;

/**
 * Apps and a client on Dapr's SDK for Java.
 *
 * <pre>
 *   Shop app http|grpc PORT              an app that takes calls
 *   Shop client (call|health APP)...     calls apps: over HTTP, as the SDK does, or the health check
 *                                        of one of gRPC, which the sidecar proxies
 * </pre>
 */
public final class Shop {
  private static final Context.Key<Metadata> TOLD = Context.key("metadata");

  public static void main(String[] arguments) throws Exception {
    switch (arguments[0]) {
      case "app" -> {
        int port = Integer.parseInt(arguments[2]);
        if (arguments[1].equals("grpc")) {
          serveGrpc(port);
        } else {
          serveHttp(port);
        }
      }
      case "client" -> {
        try (DaprClient client = new DaprClientBuilder().build()) {
          client.waitForSidecar(30_000).block();
          for (int i = 1; i + 1 < arguments.length; i += 2) {
            String app = arguments[i + 1];
            String told = arguments[i].equals("health") ? health(client, app) : call(client, app);
            System.out.println(app + ": " + told);
          }
        }
        // The threads of the SDK's HTTP client would keep the process.
        System.exit(0);
      }
      default -> throw new IllegalArgumentException(arguments[0]);
    }
  }

  private static String call(DaprClient client, String app) {
    byte[] order = "{\"id\":1}".getBytes(StandardCharsets.UTF_8);
    Map<String, String> fields = Map.of("x-order", "7", "content-type", "application/json");
    try {
      byte[] answer = client.invokeMethod(app, "order", order, HttpExtension.POST, fields).block();
      return new String(answer, StandardCharsets.UTF_8);
    } catch (RuntimeException error) {
      return "failed: " + error.getMessage();
    }
  }

  private static String health(DaprClient client, String app) {
    client
        .newGrpcStub(app, AppCallbackHealthCheckGrpc::newBlockingStub)
        .healthCheck(Empty.getDefaultInstance());
    return "well";
  }

  /** What an app answers: what it was told, and by whom. */
  private static String taken(Function<String, String> told, String verb, String body) {
    return String.format(
        "{\"order\":\"%s\",\"caller\":\"%s\",\"verb\":\"%s\",\"body\":%s}",
        told.apply("x-order"), told.apply("dapr-caller-app-id"), verb, body);
  }

  /** The SDK has no server of its own for calls over HTTP: any does. */
  private static void serveHttp(int port) throws IOException {
    HttpServer server = HttpServer.create(new InetSocketAddress("127.0.0.1", port), 0);
    server.createContext("/order", Shop::answer);
    server.start();
  }

  private static void answer(HttpExchange exchange) throws IOException {
    String body = new String(exchange.getRequestBody().readAllBytes(), StandardCharsets.UTF_8);
    Function<String, String> told = name -> exchange.getRequestHeaders().getFirst(name);
    byte[] answer =
        taken(told, exchange.getRequestMethod(), body).getBytes(StandardCharsets.UTF_8);
    exchange.getResponseHeaders().set("content-type", "application/json");
    exchange.sendResponseHeaders(200, answer.length);
    exchange.getResponseBody().write(answer);
    exchange.close();
  }

  private static void serveGrpc(int port) throws Exception {
    ServerBuilder.forPort(port)
        .addService(new Orders())
        .addService(new Health())
        .intercept(new Listening())
        .build()
        .start()
        .awaitTermination();
  }

  /** Keeps what was told beside a call. */
  private static final class Listening implements ServerInterceptor {
    @Override
    public <Q, S> ServerCall.Listener<Q> interceptCall(
        ServerCall<Q, S> call, Metadata told, ServerCallHandler<Q, S> next) {
      Context context = Context.current().withValue(TOLD, told);
      return Contexts.interceptCall(context, call, told, next);
    }
  }

  private static final class Orders extends AppCallbackGrpc.AppCallbackImplBase {
    @Override
    public void onInvoke(InvokeRequest request, StreamObserver<InvokeResponse> answer) {
      if (!request.getMethod().equals("order")) {
        answer.onError(Status.NOT_FOUND.withDescription(request.getMethod()).asException());
        return;
      }
      Metadata metadata = TOLD.get();
      Function<String, String> told =
          name -> metadata.get(Metadata.Key.of(name, Metadata.ASCII_STRING_MARSHALLER));
      String verb = request.getHttpExtension().getVerb().name();
      String taken = taken(told, verb, request.getData().getValue().toStringUtf8());
      answer.onNext(
          InvokeResponse.newBuilder()
              .setContentType("application/json")
              .setData(Any.newBuilder().setValue(ByteString.copyFromUtf8(taken)))
              .build());
      answer.onCompleted();
    }
  }

  private static final class Health
      extends AppCallbackHealthCheckGrpc.AppCallbackHealthCheckImplBase {
    @Override
    public void healthCheck(Empty request, StreamObserver<HealthCheckResponse> answer) {
      answer.onNext(HealthCheckResponse.getDefaultInstance());
      answer.onCompleted();
    }
  }
}
