// Preloaded into aimock (node --import): drops the one frame that aimock sends and Bedrock does not, a contentBlockStart
// with an empty start, which botocore refuses. aimock writes one frame per call.
import { ServerResponse } from "node:http";

const write = ServerResponse.prototype.write;

ServerResponse.prototype.write = function (chunk, ...rest) {
  if (Buffer.isBuffer(chunk) && chunk.includes("contentBlockStart") && chunk.includes('"start":{}')) return true;
  return write.call(this, chunk, ...rest);
};
