// node-redlock as a subject; speaks the protocol of child.py. Run with: node peer.mjs '{"home": DIRECTORY, "ports": [6379]}'
import { createRequire } from "node:module";
import { createInterface } from "node:readline";

const setup = JSON.parse(process.argv[2]);
const need = createRequire(`${setup.home}/package.json`);
const Redis = need("ioredis").default ?? need("ioredis");
const Redlock = need("redlock").default;
const clients = setup.ports.map((port) => new Redis({ port, host: "127.0.0.1" }));
const redlock = new Redlock(clients);
const { tasks = 0, locks = 1 } = setup;
const say = (answer) => process.stdout.write(JSON.stringify(answer) + "\n");

async function once(name) {
  const lock = await redlock.acquire([name], 10000);
  await lock.release();
}

async function cycle() {
  if (!tasks) return once("node-redlock");
  await Promise.all(
    Array.from({ length: tasks }, async (_, number) => {
      for (let turn = 0; turn < locks; turn++) await once(`n${number}:${turn}`);
    }),
  );
}

await Promise.all(clients.map((client) => client.ping()));
say({ ready: { node: process.version } });
for await (const line of createInterface({ input: process.stdin })) {
  try {
    const ns = [];
    const before = process.cpuUsage();
    for (let left = JSON.parse(line).cycles; left > 0; left--) {
      const began = process.hrtime.bigint();
      await cycle();
      ns.push(Number(process.hrtime.bigint() - began) / (tasks * locks || 1));
    }
    const { user, system } = process.cpuUsage(before);
    say({ ns, cpu: ((user + system) * 1000) / (tasks * locks || 1) / ns.length });
  } catch (error) {
    say({ error: String(error) });
  }
}
for (const client of clients) client.disconnect();
