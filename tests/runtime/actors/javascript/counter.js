// Actors by Dapr's SDK for JavaScript that count, by calls, by a timer and by a reminder.
//
//   counter.js host PORT             runs them
//   counter.js count http|grpc ID    calls one, and says what it has counted

const assert = require("node:assert");
const { setTimeout: pause } = require("node:timers/promises");

const { AbstractActor, ActorId, ActorProxyBuilder, CommunicationProtocolEnum, DaprClient, DaprServer, LogLevel, Temporal } =
  require("@dapr/dapr");

const protocols = { http: CommunicationProtocolEnum.HTTP, grpc: CommunicationProtocolEnum.GRPC };
// What it logs goes where the answers go.
const logger = { level: LogLevel.Error };
const soon = Temporal.Duration.from({ milliseconds: 200 });

// The SDK names a type after its class, here and where it is called.
class Counter extends AbstractActor {
  async onActivate() {
    this.ticks = 0;
  }

  async add(more) {
    const count = (await this.kept("count", 0)) + more;
    await this.getStateManager().setState("count", count);
    return count;
  }

  async told() {
    return {
      count: await this.kept("count", 0),
      ticks: this.ticks,
      reminded: await this.kept("reminded", []),
    };
  }

  async tick(on) {
    if (on) {
      await this.registerActorTimer("clock", "onTick", soon, soon, undefined, 2);
    } else {
      await this.unregisterActorTimer("clock");
    }
  }

  // Of what a timer holds the SDK hands on texts and numbers.
  async onTick(step) {
    this.ticks += step;
  }

  async remind(on) {
    if (on) {
      await this.registerActorReminder("bell", soon, soon, undefined, "ding");
    } else {
      await this.unregisterActorReminder("bell");
    }
  }

  async receiveReminder(data) {
    const rung = await this.kept("reminded", []);
    await this.getStateManager().setState("reminded", [...rung, data]);
  }

  async fail() {
    throw new Error("out of count");
  }

  async kept(name, otherwise) {
    const [isThere, value] = await this.getStateManager().tryGetState(name);
    return isThere ? value : otherwise;
  }
}

async function host(port) {
  const server = new DaprServer({
    serverHost: "127.0.0.1",
    serverPort: port,
    clientOptions: { daprHost: "127.0.0.1", logger },
    logger,
  });
  await server.actor.init();
  await server.actor.registerActor(Counter);
  await server.start();
}

async function until(counter, holds) {
  for (const began = Date.now(); ; await pause(50)) {
    const told = await counter.told();
    if (holds(told)) {
      return told;
    }
    assert(Date.now() - began < 30_000, JSON.stringify(told));
  }
}

async function count(protocol, id) {
  const client = new DaprClient({ daprHost: "127.0.0.1", communicationProtocol: protocols[protocol], logger });
  await client.start();
  const counters = new ActorProxyBuilder(Counter, client);
  const counter = counters.build(new ActorId(id));
  assert.strictEqual(await counter.add(3), 3);
  assert.strictEqual(await counter.add(4), 7);
  const other = counters.build(new ActorId(`${id} other`));
  assert.strictEqual(await other.add(1), 1);
  await assert.rejects(counter.fail(), /error from actor service: \(500\)/);
  await assert.rejects(counter.nothing(), /error from actor service: \(500\)/);

  await counter.tick(true);
  await until(counter, ({ ticks }) => ticks >= 4);
  await counter.tick(false);
  await counter.remind(true);
  const { reminded } = await until(counter, ({ reminded }) => reminded.length >= 2);
  assert(reminded.every((data) => data === "ding"), reminded);
  await counter.remind(false);
  const told = await counter.told();
  await pause(600);
  assert.deepStrictEqual(await counter.told(), told);
  console.log(told.count);
  await client.stop();
}

const [command, ...rest] = process.argv.slice(2);
({ host, count })[command](...rest).catch((error) => {
  console.error(error);
  process.exit(1);
});
