// One chat turn with RadixGate from Node.js, straight from the .proto files.
//
//   node chat.mjs --target 127.0.0.1:50051 --key KEY [--max-new-tokens N] "Why is the sky blue?"
//
// Streams the answer to standard output. With --json it prints one object at the end instead:
// {"text": ..., "token_ids": [...], "finish_reason": ..., "usage": {...}}.

import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";

import grpc from "@grpc/grpc-js";
import protoLoader from "@grpc/proto-loader";

const protoRoot = join(dirname(fileURLToPath(import.meta.url)), "..", "..", "proto");

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

async function chat({ target, key, content, maxNewTokens, onText }) {
  const metadata = new grpc.Metadata();
  metadata.set("authorization", `Bearer ${key}`);
  const request = {
    chat: { messages: [{ role: "user", content }] },
    sampling: { max_new_tokens: maxNewTokens, temperature: 0 },
  };
  const client = inferenceClient(target);
  const answer = { text: "", token_ids: [], finish_reason: null, usage: null };
  try {
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
  } finally {
    client.close();
  }
  return answer;
}

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    target: { type: "string", default: "127.0.0.1:50051" },
    key: { type: "string", default: process.env.RADIXGATE_API_KEY },
    "max-new-tokens": { type: "string", default: "64" },
    json: { type: "boolean", default: false },
  },
});
if (!values.key || positionals.length !== 1) {
  console.error('usage: node chat.mjs --target HOST:PORT --key KEY [--max-new-tokens N] [--json] "MESSAGE"');
  process.exit(2);
}
const maxNewTokens = Number(values["max-new-tokens"]);
if (!Number.isInteger(maxNewTokens) || maxNewTokens < 1) {
  console.error(`--max-new-tokens must be a whole number from 1, not ${JSON.stringify(values["max-new-tokens"])}`);
  process.exit(2);
}

try {
  const answer = await chat({
    target: values.target,
    key: values.key,
    content: positionals[0],
    maxNewTokens,
    onText: (text) => values.json || process.stdout.write(text),
  });
  if (values.json) {
    console.log(JSON.stringify(answer));
  } else {
    const { usage } = answer;
    const cut = answer.finish_reason === "FINISH_REASON_LENGTH" ? "; cut off by the length limit" : "";
    console.log(`\n[${usage.prompt_tokens} prompt tokens, ${usage.cached?.device ?? 0} of them cached${cut}]`);
  }
} catch (error) {
  console.error(`${grpc.status[error.code] ?? "ERROR"}: ${error.details ?? error.message}`);
  process.exit(1);
}
