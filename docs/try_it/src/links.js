// A program in the fragment of an address: URL-safe base64 of its UTF-8 text. Fragments are not sent to servers.
export function encode(text) {
  const bytes = Array.from(new TextEncoder().encode(text), (byte) => String.fromCharCode(byte)).join("");
  return btoa(bytes).replaceAll("+", "-").replaceAll("/", "_").replace(/=+$/, "");
}

export function decode(code) {
  const bytes = atob(code.replaceAll("-", "+").replaceAll("_", "/"));
  return new TextDecoder("utf-8", { fatal: true }).decode(Uint8Array.from(bytes, (x) => x.charCodeAt(0)));
}
