// The theme searches in a worker, and browsers start no worker for a page that is read from a folder (file://).
// There, this class runs the worker's script in a hidden frame. Over http it changes nothing.
if (location.protocol === "file:") {
  window.Worker = class {
    #frame = document.createElement("iframe");
    #waiting = [];

    constructor(address) {
      this.#frame.hidden = true;
      this.#frame.onload = () => this.#start(String(address));
      document.body.append(this.#frame);
    }

    postMessage(data) {
      // Like a worker, the script gets and sends copies, and never before the caller has ended.
      if (this.#waiting) this.#waiting.push(data);
      else setTimeout(() => this.#frame.contentWindow?.onmessage({data: structuredClone(data)}));
    }

    terminate() {
      this.#frame.remove();
    }

    #start(address) {
      const scope = this.#frame.contentWindow;
      const script = scope.document.createElement("script");
      scope.postMessage = data => setTimeout(() => this.onmessage?.({data: structuredClone(data)}));
      script.src = address;
      script.onerror = event => this.onerror?.(event);
      script.onload = () => {
        const waiting = this.#waiting;
        this.#waiting = null;
        waiting.forEach(data => this.postMessage(data));
      };
      scope.document.head.append(script);
    }
  };
}
