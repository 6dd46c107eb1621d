// The worker that runs Python: one question at a time; stop ends the worker and starts another one.
export class Python {
  constructor(address, { onProgress, onReady, onFailed }) {
    this.address = address;
    this.tell = { onProgress, onReady, onFailed };
    this.start();
  }

  start() {
    this.ready = false;
    this.waiting = new Map();
    this.next = 0;
    // A worker from a blob keeps the page's Content-Security-Policy: Python reaches no other server.
    const blob = new Blob([`import ${JSON.stringify(this.address)};`], { type: "text/javascript" });
    const url = URL.createObjectURL(blob);
    this.worker = new Worker(url, { type: "module" });
    this.worker.onmessage = ({ data }) => this.receive(data, url);
    this.worker.onerror = (event) => this.fail(event.message || "the worker could not be loaded");
  }

  receive(data, url) {
    if (data.progress) this.tell.onProgress(data.progress, data.share);
    else if (data.ready) {
      URL.revokeObjectURL(url);
      this.ready = true;
      this.sendKept();
      this.tell.onReady();
    } else if (data.failed) this.fail(data.failed);
    else if (this.waiting.has(data.id)) {
      this.waiting.get(data.id).resolve(data.answer);
      this.waiting.delete(data.id);
    }
  }

  // Messages sent before the module has set its listener are lost, so that questions wait until Python is ready.
  sendKept() {
    for (const { question, sent } of this.waiting.values()) if (!sent) this.worker.postMessage(question);
    for (const entry of this.waiting.values()) entry.sent = true;
  }

  ask(text, part) {
    return new Promise((resolve, reject) => {
      const question = { id: this.next++, text, part };
      this.waiting.set(question.id, { question, resolve, reject, sent: false });
      if (this.ready) this.sendKept();
    });
  }

  fail(message) {
    this.tell.onFailed(message);
    this.restart("failed");
  }

  restart(reason = "stopped") {
    this.worker.terminate();
    for (const { reject } of this.waiting.values()) reject(new Error(reason));
    if (reason === "stopped" || this.ready) this.start();
  }
}
