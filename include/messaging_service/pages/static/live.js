// Refreshes the parts of a page that are marked data-live. Elements that did not change stay, and with them the focus,
// selected text, opened details and scroll positions.
'use strict';

const AT_LEAST = 2_000; // milliseconds between two refreshes
const SPARING = 10; // wait this many times as long as the last refresh took
const stale = document.getElementById('stale');

const keyOf = (node) => node?.dataset?.key;

function copyAttributes(old, fresh) {
  const names = new Set([...old.attributes, ...fresh.attributes].map(({ name }) => name));
  names.delete('open'); // of details, which the reader opens
  for (const name of names) {
    const value = fresh.getAttribute(name);
    if (value === null) old.removeAttribute(name);
    else if (value !== old.getAttribute(name)) old.setAttribute(name, value);
  }
}

// Make an element equal to another one. Rows are matched by data-key, other nodes by their place.
function update(old, fresh) {
  copyAttributes(old, fresh);
  const wanted = new Set([...fresh.children].map(keyOf));
  for (const child of [...old.children]) if (keyOf(child) && !wanted.has(keyOf(child))) child.remove();
  const kept = new Map([...old.children].map((child) => [keyOf(child), child]));
  let place = old.firstChild;
  const drop = () => {
    const dropped = place;
    place = place.nextSibling;
    dropped.remove();
  };
  for (const next of [...fresh.childNodes]) {
    const match = keyOf(next) ? kept.get(keyOf(next)) : !keyOf(place) && place;
    while (keyOf(match) && place && place !== match && !keyOf(place)) drop();
    if (!match || match.nodeName !== next.nodeName) {
      old.insertBefore(document.importNode(next, true), place);
      continue;
    }
    if (match === place) place = place.nextSibling;
    else old.insertBefore(match, place);
    if (match.isEqualNode(next)) continue;
    if (match.nodeType === Node.ELEMENT_NODE) update(match, next);
    else match.data = next.data;
  }
  while (place) drop();
}

async function refresh() {
  const began = performance.now();
  if (document.hidden) {
    document.addEventListener('visibilitychange', refresh, { once: true });
    return;
  }
  try {
    const answer = await fetch(location.href, { cache: 'no-store', signal: AbortSignal.timeout(60_000) });
    if (!answer.ok) throw new Error(answer.status);
    const page = new DOMParser().parseFromString(await answer.text(), 'text/html');
    const fresh = page.querySelectorAll('[data-live]');
    document.querySelectorAll('[data-live]').forEach((old, place) => fresh[place] && update(old, fresh[place]));
    stale.hidden = true;
  } catch {
    stale.hidden = false;
  }
  setTimeout(refresh, Math.max(AT_LEAST, SPARING * (performance.now() - began)));
}

setTimeout(refresh, AT_LEAST);
