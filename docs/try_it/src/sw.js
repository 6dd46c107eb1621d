// Keeps the page and its parts, so that a second visit needs no download and works without a network.
// What lies under assets/<digest>/ never changes and comes from the cache; the rest is asked for first.
const CACHE = `try-it-${DIGEST}`;

self.addEventListener("install", () => self.skipWaiting());

self.addEventListener("activate", (event) => {
  const old = (name) => name.startsWith("try-it-") && name !== CACHE;
  const clean = async () => Promise.all((await caches.keys()).filter(old).map((name) => caches.delete(name)));
  event.waitUntil(clean().then(() => self.clients.claim()));
});

async function fromNetwork(request, cache) {
  const response = await fetch(request);
  if (response.status === 200) await cache.put(request, response.clone());
  return response;
}

async function respond(request) {
  const cache = await caches.open(CACHE);
  const kept = await cache.match(request);
  if (kept && request.url.includes(`/assets/${DIGEST}/`)) return kept;
  try {
    return await fromNetwork(request, cache);
  } catch (error) {
    if (kept) return kept;
    throw error;
  }
}

self.addEventListener("fetch", (event) => {
  const { method, url } = event.request;
  if (method === "GET" && new URL(url).origin === self.location.origin) event.respondWith(respond(event.request));
});
