// An app and a client on Dapr's SDK for JavaScript.
//
//   shop.js app http|grpc PORT    an app that takes calls
//   shop.js client APP...         calls each app, over HTTP and over gRPC

const { CommunicationProtocolEnum, DaprClient, DaprServer, HttpMethod, LogLevel } = require("@dapr/dapr");

const protocols = { http: CommunicationProtocolEnum.HTTP, grpc: CommunicationProtocolEnum.GRPC };
// What it logs goes where the answers go.
const logger = { level: LogLevel.Error };

async function serve(protocol, port) {
  const server = new DaprServer({
    serverHost: "127.0.0.1",
    serverPort: port,
    communicationProtocol: protocols[protocol],
    clientOptions: { daprHost: "127.0.0.1" },
    logger,
  });
  const take = async ({ body, query, headers, metadata }) => ({
    order: headers?.["x-order"],
    caller: headers?.["dapr-caller-app-id"],
    query,
    kind: metadata.contentType,
    body: JSON.parse(body),
  });
  await server.invoker.listen("order", take, { method: HttpMethod.POST });
  await server.start();
}

async function call(protocol, apps) {
  const client = new DaprClient({ daprHost: "127.0.0.1", communicationProtocol: protocols[protocol], logger });
  await client.start();
  for (const app of apps) {
    const options = { headers: { "x-order": "7" } };
    const answer = client.invoker.invoke(app, "order", HttpMethod.POST, { id: 1 }, options);
    const told = await answer.then(JSON.stringify, (error) => `failed: ${error.message}`);
    console.log(`${protocol} ${app}: ${told}`);
  }
  await client.stop();
}

async function main([command, ...rest]) {
  if (command === "app") {
    return serve(...rest);
  }
  for (const protocol of Object.keys(protocols)) {
    await call(protocol, rest);
  }
}

main(process.argv.slice(2)).catch((error) => {
  console.error(error);
  process.exit(1);
});
