// An agent of the AI SDK with two tools: `ai_sdk_agent.mjs MODULES URL MODEL PROMPT ...`, one turn per prompt.
import { appendFile, readFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [modules, url, model, ...prompts] = process.argv.slice(2);
// This file is not beside the installed packages, so they are looked up from their folder.
const require = createRequire(`${modules}/`);
const load = (name) => import(pathToFileURL(require.resolve(name)).href);
const { generateText, stepCountIs, tool } = await load("ai");
const { createAnthropic } = await load("@ai-sdk/anthropic");
const { z } = await load("zod");

const anthropic = createAnthropic({ baseURL: `${url}/v1`, apiKey: "any" });
const tools = {
  read_file: tool({
    description: "Read a file.",
    inputSchema: z.object({ path: z.string() }),
    execute: ({ path }) => readFile(path, "utf8"),
  }),
  append_line: tool({
    description: "Append a line to a file.",
    inputSchema: z.object({ path: z.string(), line: z.string() }),
    execute: async ({ path, line }) => {
      await appendFile(path, `${line}\n`);
      return "appended";
    },
  }),
};
const messages = [];
for (const prompt of prompts) {
  messages.push({ role: "user", content: prompt });
  const system = "You keep the notes of a harbour. ".repeat(200);
  const result = await generateText({ model: anthropic(model), system, tools, messages, stopWhen: stepCountIs(8) });
  messages.push(...result.responseMessages);
  console.log(result.text);
}
