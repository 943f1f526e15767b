// A Yjs client as others write it: yjs, y-protocols and ws, and nothing of agentpost.
// node client.mjs URL TICKET NODE KEY.pem ACTION; prints one line of JSON: what it saw, and how it ended.
import { createPrivateKey, createPublicKey, sign } from "node:crypto";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

const require = createRequire(process.env.YJS_MODULES + "/");
const Y = require("yjs");
const sync = require("y-protocols/sync");
const encoding = require("lib0/encoding");
const decoding = require("lib0/decoding");
const WebSocket = require("ws");

const [url, ticket, node, keyFile, action] = process.argv.slice(2);
const SYNC = 0;
const doc = new Y.Doc();
const seen = { bytes: 0, nodes: {}, status: 101, body: null, code: null, reason: null };

const options = ticket ? { headers: { authorization: `Bearer ${ticket}` } } : {};
const socket = new WebSocket(url, options);
socket.binaryType = "arraybuffer";

function send(fill) {
  const encoder = encoding.createEncoder();
  encoding.writeVarUint(encoder, SYNC);
  fill(encoder);
  socket.send(encoding.toUint8Array(encoder));
}

function finish() {
  console.log(JSON.stringify(seen));
  process.exit(0);
}

function canonical(value) {
  if (Array.isArray(value)) return `[${value.map(canonical).join(",")}]`;
  if (value === null || typeof value !== "object") return JSON.stringify(value);
  const fields = Object.keys(value).sort().map((name) => `${JSON.stringify(name)}:${canonical(value[name])}`);
  return `{${fields.join(",")}}`;
}

function signed(map, key, record) {
  const signature = sign(null, Buffer.from(canonical([map, key, record])), createPrivateKey(readFileSync(keyFile)));
  return { ...record, sig: signature.toString("base64url") };
}

function write() {
  const owner = action === "foreign" ? "vps-jane" : node;
  const publicKey = createPublicKey(readFileSync(keyFile)).export({ format: "jwk" }).x;
  const record = { tier: "edge", status: "online", publicKey, rev: Date.now(), signedBy: node };
  doc.getMap("nodes").set(owner, signed("nodes", owner, record));
}

doc.on("update", (update, origin) => {
  if (origin !== socket) send((encoder) => sync.writeUpdate(encoder, update));
});

socket.on("unexpected-response", (_request, response) => {
  let body = "";
  seen.status = response.statusCode;
  response.on("data", (part) => { body += part; });
  response.on("end", () => { seen.body = JSON.parse(body); finish(); });
});
socket.on("open", () => send((encoder) => sync.writeSyncStep1(encoder, doc)));
socket.on("message", (data) => {
  seen.bytes += data.byteLength;
  const decoder = decoding.createDecoder(new Uint8Array(data));
  if (decoding.readVarUint(decoder) !== SYNC) return;
  const encoder = encoding.createEncoder();
  encoding.writeVarUint(encoder, SYNC);
  const kind = sync.readSyncMessage(decoder, encoder, doc, socket);
  if (encoding.length(encoder) > 1) socket.send(encoding.toUint8Array(encoder));
  if (kind === sync.messageYjsSyncStep2) {
    seen.nodes = doc.getMap("nodes").toJSON();
    if (action === "read") finish();
    write();
    // Who is not thrown out within a while may stay.
    if (action === "own") setTimeout(finish, 500);
  }
});
socket.on("close", (code, reason) => {
  seen.code = code;
  seen.reason = reason.toString();
  finish();
});
setTimeout(finish, 20000);
