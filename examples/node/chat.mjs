// One chat turn with RadixGate from Node.js, straight from the .proto files.
//
//   node chat.mjs --target 127.0.0.1:50051 --key KEY [--max-new-tokens N] "Why is the sky blue?"
//
// Streams the answer to standard output. With --json it prints one object at the end instead:
// {"text": ..., "token_ids": [...], "finish_reason": ..., "usage": {...}}.

import { dirname, join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";

import grpc from "@grpc/grpc-js";
import protoLoader from "@grpc/proto-loader";

const USAGE =
  'usage: node chat.mjs --target HOST:PORT --key KEY [--model NAME] [--max-new-tokens N] [--json] "MESSAGE"';
const MAX_TRIES = 3;
const LONGEST_WAIT_S = 60;

const protoRoot = join(dirname(fileURLToPath(import.meta.url)), "..", "..", "proto");

// The part of google.rpc that says when to try again.
const rpc = protoLoader.fromJSON(
  {
    nested: {
      Status: { fields: { details: { rule: "repeated", type: "Any", id: 3 } } },
      Any: { fields: { type_url: { type: "string", id: 1 }, value: { type: "bytes", id: 2 } } },
      RetryInfo: { fields: { retry_delay: { type: "Duration", id: 1 } } },
      Duration: { fields: { seconds: { type: "int64", id: 1 }, nanos: { type: "int32", id: 2 } } },
    },
  },
  { keepCase: true, longs: Number, defaults: true },
);

function inferenceClient(target) {
  const definition = protoLoader.loadSync("radixgate/v1/inference.proto", {
    includeDirs: [protoRoot],
    keepCase: true,
    longs: Number,
    enums: String,
    defaults: true,
  });
  const { InferenceService } = grpc.loadPackageDefinition(definition).radixgate.v1;
  return new InferenceService(target, grpc.credentials.createInsecure());
}

// Seconds until the gateway wants to be asked again, or null where it does not say.
function retryDelay(error) {
  const [packed] = error.metadata?.get("grpc-status-details-bin") ?? [];
  if (!packed) return null;
  const detail = rpc.Status.deserialize(packed).details.find(({ type_url }) => type_url.endsWith("google.rpc.RetryInfo"));
  if (!detail) return null;
  const { seconds, nanos } = rpc.RetryInfo.deserialize(detail.value).retry_delay;
  return seconds + nanos / 1e9;
}

async function chat({ client, key, model, content, maxNewTokens, onText }) {
  const metadata = new grpc.Metadata();
  metadata.set("authorization", `Bearer ${key}`);
  const request = {
    model,
    chat: { messages: [{ role: "user", content }] },
    sampling: { max_new_tokens: maxNewTokens, temperature: 0 },
  };
  const answer = { text: "", token_ids: [], finish_reason: null, usage: null };
  const stream = client.Generate(request, metadata, { deadline: Date.now() + 120_000 });
  for await (const message of stream) {
    answer.text += message.text;
    answer.token_ids.push(...message.token_ids);
    onText(message.text);
    if (message.usage) {
      answer.finish_reason = message.finish_reason;
      answer.usage = message.usage;
    }
  }
  return answer;
}

// Where the gateway says when to try again, and nothing has been printed yet, do that.
async function patiently(ask) {
  for (let attempt = 1; ; attempt += 1) {
    let hasBegun = false;
    try {
      return await ask(() => (hasBegun = true));
    } catch (error) {
      const wait = retryDelay(error);
      if (hasBegun || wait === null || wait > LONGEST_WAIT_S || attempt === MAX_TRIES) throw error;
      console.error(`${error.details}; trying again in ${wait} s`);
      await sleep(wait * 1000);
    }
  }
}

function readOptions() {
  const options = {
    target: { type: "string", default: process.env.RADIXGATE_TARGET ?? "127.0.0.1:50051" },
    key: { type: "string", default: process.env.RADIXGATE_API_KEY },
    model: { type: "string", default: "" },
    "max-new-tokens": { type: "string", default: "64" },
    json: { type: "boolean", default: false },
    help: { type: "boolean", short: "h", default: false },
  };
  try {
    return parseArgs({ allowPositionals: true, options });
  } catch (error) {
    fail(`${error.message}\n${USAGE}`);
  }
}

function fail(message) {
  console.error(message);
  process.exit(2);
}

const { values, positionals } = readOptions();
if (values.help) {
  console.log(USAGE);
  process.exit(0);
}
if (!values.key || positionals.length !== 1) fail(USAGE);
const maxNewTokens = Number(values["max-new-tokens"]);
if (!Number.isInteger(maxNewTokens) || maxNewTokens < 1) {
  fail(`--max-new-tokens must be a whole number from 1, not ${JSON.stringify(values["max-new-tokens"])}`);
}

const client = inferenceClient(values.target);
try {
  const answer = await patiently((begun) =>
    chat({
      client,
      key: values.key,
      model: values.model,
      content: positionals[0],
      maxNewTokens,
      onText: (text) => {
        begun();
        if (!values.json) process.stdout.write(text);
      },
    }),
  );
  if (values.json) {
    console.log(JSON.stringify(answer));
  } else {
    const { usage } = answer;
    const { device, host, storage } = usage.cached ?? { device: 0, host: 0, storage: 0 };
    const cut = answer.finish_reason === "FINISH_REASON_LENGTH" ? "; cut off by the length limit" : "";
    console.log(`\n[${usage.prompt_tokens} prompt tokens, ${device + host + storage} of them cached${cut}]`);
  }
} catch (error) {
  console.error(`${grpc.status[error.code] ?? "ERROR"}: ${error.details ?? error.message}`);
  process.exitCode = 1;
} finally {
  client.close();
}
