// Refresh pages, send actions without a reload, and open Airflow's own pages.
'use strict';

const MARK = { 'X-Sendoff-Request': '1', 'Content-Type': 'application/json' };
const said = document.getElementById('said');
const busy = document.getElementById('busy');
const stale = document.getElementById('stale');

function parse(text) {
  const found = new DOMParser().parseFromString(text, 'text/html');
  showTimes(found);
  return found;
}

function put(place, nodes) {
  place.replaceChildren(...[...nodes].map((node) => document.adoptNode(node)));
}

// --- Times -------------------------------------------------------------------------------------------------------

const ZONE = 'timezone'; // where Airflow's pages store the time zone that their reader chose
const NEAR = { '-1': 'yesterday', 0: 'today', 1: 'tomorrow' };

// Return the time zone that the reader chose in Airflow, or else the browser's.
function zone() {
  try {
    const chosen = JSON.parse(localStorage.getItem(ZONE)) ?? undefined;
    return new Intl.DateTimeFormat('en', { timeZone: chosen }).resolvedOptions().timeZone;
  } catch {
    return new Intl.DateTimeFormat().resolvedOptions().timeZone;
  }
}

function writer(timeZone, how) {
  const format = new Intl.DateTimeFormat('en-GB', { timeZone, ...how });
  return (moment) => format.format(moment);
}

const DATE = { day: 'numeric', month: 'short', year: 'numeric' };

// Return a period of whole days in a time zone as its dates, or else nothing.
function wholeDays(start, end, timeZone) {
  const clock = writer(timeZone, { timeStyle: 'medium' });
  if (clock(start) !== '00:00:00' || clock(end) !== '00:00:00') return '';
  const date = writer(timeZone, DATE);
  const last = date(Math.max(start, end - 3_600_000));
  return date(start) === last ? last : `${date(start)} to ${last}`;
}

function showTimes(place) {
  const name = zone();
  const date = writer(name, DATE);
  const clock = writer(name, { timeStyle: 'short' });
  const full = writer(name, { dateStyle: 'full', timeStyle: 'medium' });
  const isoDate = new Intl.DateTimeFormat('sv', { timeZone: name });
  const day = (moment) => Date.parse(isoDate.format(moment)) / 86_400_000;
  const today = day(new Date());
  const words = (moment) => `${NEAR[day(moment) - today] ?? date(moment)} ${clock(moment)}`;
  for (const time of place.querySelectorAll('time[datetime]')) {
    const moments = [time.dateTime, time.dataset.until].filter(Boolean).map((text) => new Date(text));
    const days = moments.length > 1 && (wholeDays(...moments, name) || wholeDays(...moments, 'UTC'));
    time.textContent = days || [...new Set(moments.map(words))].join(' to ');
    time.title = `${moments.map(full).join(' to ')} (${name})`;
  }
  for (const each of place.querySelectorAll('.zone')) each.textContent = name;
}

showTimes(document);

// Tell the server the reader's time zone, and ask for a page again that was made for another one.
function tellZone() {
  const name = zone();
  document.cookie = `sendoff-zone=${name}; path=/; max-age=31536000; SameSite=Lax`;
  if (document.body.dataset.zone !== name) refresh({ force: true });
}

window.addEventListener('storage', ({ key }) => {
  if (key !== ZONE) return;
  showTimes(document);
  tellZone();
});

// --- Refreshing --------------------------------------------------------------------------------------------------

let timer = 0;
let failures = 0;

function main() {
  return document.getElementById('main');
}

// Do not refresh while a user writes, selects, or has an action open.
function isInUse() {
  const at = document.activeElement;
  if (main().contains(at) && at.matches('input, select, textarea, button, form *')) return true;
  if (main().querySelector('details.act[open]')) return true;
  if ([...main().querySelectorAll('input[data-list]')].some((box) => box.checked !== box.defaultChecked)) return true;
  return [...main().querySelectorAll('textarea, input[type=text]')].some((field) => field.value !== field.defaultValue);
}

function schedule() {
  clearTimeout(timer);
  const seconds = Number(main().dataset.refresh);
  if (seconds && !document.hidden) timer = setTimeout(refresh, seconds * 1000 * Math.min(8, 2 ** failures));
}

async function refresh({ force = false } = {}) {
  if (document.hidden) return;
  if (!force && isInUse()) {
    schedule();
    return;
  }
  try {
    const answer = await fetch(location.href, { headers: { Accept: 'text/html' } });
    if (answer.redirected) {
      location.replace(answer.url);
      return;
    }
    const text = await answer.text();
    if (!force && isInUse()) return;
    if (answer.ok || answer.status === 503 || answer.status === 401 || answer.status === 404) swap(parse(text));
    failures = answer.ok ? 0 : failures + 1;
    stale.hidden = true;
  } catch {
    failures += 1;
    stale.hidden = false;
  } finally {
    schedule();
  }
}

function swap(found) {
  const next = found.getElementById('main');
  if (!next) return;
  showTimes(next);
  for (const { id } of main().querySelectorAll('details[id][open]')) {
    next.querySelector(`#${CSS.escape(id)}`)?.setAttribute('open', '');
  }
  const written = [...main().querySelectorAll('textarea[id]')].filter((field) => field.value);
  const focus = main().contains(document.activeElement) ? path(document.activeElement) : null;
  main().dataset.refresh = next.dataset.refresh;
  document.title = found.title;
  merge(main(), next);
  for (const { id, value } of written) {
    const field = document.getElementById(id);
    if (field) field.value = value;
  }
  if (focus && !main().contains(document.activeElement)) main().querySelector(focus)?.focus({ preventScroll: true });
}

// What did not change stays, so that emails in frames do not load again.
function merge(page, next) {
  let old = page.firstElementChild;
  const removeUpTo = (end) => {
    while (old !== end) {
      const gone = old;
      old = old.nextElementSibling;
      gone.remove();
    }
  };
  for (const part of [...next.children]) {
    let same = old;
    while (same && !same.isEqualNode(part)) same = same.nextElementSibling;
    if (same) {
      removeUpTo(same);
      old = same.nextElementSibling;
    } else page.insertBefore(document.adoptNode(part), old);
  }
  removeUpTo(null);
}

// Return a selector for an element, so that its replacement gets the focus back.
function path(element) {
  if (element.id) return `#${CSS.escape(element.id)}`;
  if (element.tagName === 'A') return `a[href="${CSS.escape(element.getAttribute('href'))}"]`;
  const owner = element.closest('[id]');
  return owner && owner.id !== 'main' ? `#${CSS.escape(owner.id)} ${element.tagName}` : null;
}

document.addEventListener('visibilitychange', () => (document.hidden ? clearTimeout(timer) : refresh()));

// --- Acting ------------------------------------------------------------------------------------------------------

async function values(form) {
  const found = {};
  for (const field of form.elements) {
    if (field.type === 'file') {
      if (field.files.length) found[field.name] = await field.files[0].text();
      continue;
    }
    if (!field.name || (field.type === 'checkbox' && !field.checked)) {
      if (field.name && 'list' in field.dataset) found[field.name] ??= [];
      continue;
    }
    if ('list' in field.dataset) (found[field.name] ??= []).push(field.value);
    else found[field.name] = field.value;
  }
  return found;
}

async function ask(address, body, place) {
  busy.hidden = false;
  try {
    const answer = await fetch(address, { method: 'POST', headers: MARK, body: JSON.stringify(body) });
    const found = parse(await answer.text());
    for (const name of ['href', 'formaction']) {
      // The links of an answer are relative to its own address, which is not that of this page.
      for (const each of found.querySelectorAll(`[${name}]`)) each.setAttribute(name, new URL(each.getAttribute(name), address));
    }
    put(place, found.body.childNodes);
    return answer.ok || answer.status === 409;
  } catch {
    tell(place, 'Airflow did not answer, so it is not known whether this was done. Reload the page and check.', 'alarm');
    return false;
  } finally {
    busy.hidden = true;
  }
}

// Save the answer to a form as a file. Its content is in no address and in no part of the page.
async function download(form) {
  busy.hidden = false;
  try {
    const answer = await fetch(form.action, { method: 'POST', headers: MARK, body: JSON.stringify(await values(form)) });
    if (answer.ok) {
      const link = document.createElement('a');
      link.href = URL.createObjectURL(await answer.blob());
      link.download = form.dataset.download;
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
      cancel(form.closest('details.act'));
      tell(said, 'The file is downloaded.');
    } else put(said, parse(await answer.text()).body.childNodes);
  } catch {
    tell(said, 'Airflow did not answer, so there is no file.', 'alarm');
  } finally {
    busy.hidden = true;
    said.focus();
  }
}

function tell(place, words, kind = 'done') {
  const paragraph = document.createElement('p');
  paragraph.textContent = words;
  const box = document.createElement('div');
  box.className = kind;
  box.append(paragraph);
  place.replaceChildren(box);
}

document.addEventListener('submit', async (event) => {
  const form = event.target;
  const acts = 'act' in (event.submitter?.dataset ?? {}) || 'act' in form.dataset;
  if ('into' in form.dataset && !acts) {
    event.preventDefault();
    await ask(form.action, await values(form), document.getElementById(form.dataset.into));
  } else if ('download' in form.dataset) {
    event.preventDefault();
    await download(form);
  } else if (acts) {
    event.preventDefault();
    const buttons = [...form.elements].filter((each) => each.tagName === 'BUTTON');
    const address = event.submitter?.hasAttribute('formaction') ? event.submitter.formAction : form.action;
    buttons.forEach((button) => (button.disabled = true)); // first, because reading a file takes time
    const body = await values(form);
    const isOver = await ask(address, body, said);
    buttons.forEach((button) => (button.disabled = false));
    said.focus();
    said.scrollIntoView({ block: 'nearest' });
    if (!isOver) return;
    form.reset();
    (form.closest('details.act') ?? form.querySelector('details.act'))?.removeAttribute('open');
    await refresh({ force: true });
  } else {
    busy.hidden = false;
  }
});

// --- Forms -------------------------------------------------------------------------------------------------------

// Close the form of an action, and move the focus back to where it was opened.
function cancel(details) {
  for (const field of details.querySelectorAll('textarea')) field.value = '';
  details.querySelector('form')?.reset();
  details.removeAttribute('open');
  details.querySelector('summary').focus();
}

document.addEventListener('click', (event) => {
  const details = event.target.closest('details.act');
  if (!details) return;
  if (event.target.closest('[data-cancel]')) cancel(details);
  if (event.target.closest('summary') && !details.open) {
    details.addEventListener('toggle', () => details.querySelector('input:not([type=hidden], [type=checkbox]), select, textarea')?.focus(), { once: true });
  }
});

document.addEventListener('keydown', (event) => {
  const details = event.key === 'Escape' && event.target.closest('details.act[open]');
  if (details) cancel(details);
});

// Name on each button how many requests are selected, and how many recipients they have.
function counted(number, one, many) {
  return `${number.toLocaleString('en')} ${number === 1 ? one : many}`;
}

function countSelected(form) {
  const boxes = [...form.querySelectorAll('input[data-list]')];
  const selected = boxes.filter((box) => box.checked);
  const all = form.querySelector('input[data-all]');
  all.checked = selected.length === boxes.length;
  all.indeterminate = selected.length > 0 && !all.checked;
  const people = selected.reduce((sum, box) => sum + Number(box.dataset.people), 0);
  const [one, many] = form.querySelector('[data-nouns]').dataset.nouns.split('/');
  const requests = selected.length ? ` ${counted(selected.length, 'request', 'requests')}` : '';
  const whom = people ? ` to ${counted(people, one, many)}` : '';
  for (const button of form.querySelectorAll('button[data-verb]')) {
    button.textContent = `${button.dataset.verb}${requests}${whom}`;
    button.disabled = !selected.length;
  }
}

document.addEventListener('change', (event) => {
  if (!event.target.matches('input[data-all], input[data-list]')) return;
  const { form } = event.target;
  if ('all' in event.target.dataset) {
    for (const box of form.querySelectorAll('input[data-list]')) box.checked = event.target.checked;
  }
  countSelected(form);
});
// A browser may restore a selection from before.
window.addEventListener('pageshow', () => {
  for (const all of document.querySelectorAll('input[data-all]')) countSelected(all.form);
});

// --- Airflow -----------------------------------------------------------------------------------------------------

// Airflow shows these pages in a frame that links cannot leave. So click a link in the surrounding page.
function lead(href) {
  const link = window.parent.document.createElement('a');
  link.href = href;
  window.parent.document.body.append(link);
  link.click();
  link.remove();
}

async function askAirflow(button) {
  const body = JSON.parse(button.dataset.airflowBody);
  if (body.logical_date === 'now') body.logical_date = new Date().toISOString();
  const reason = button.form?.elements.reason;
  if (reason) {
    reason.value = reason.value.trim();
    if (!button.form.reportValidity()) return;
    body.conf.reason = reason.value;
  }
  button.disabled = true;
  busy.hidden = false;
  try {
    const answer = await fetch(new URL(button.dataset.airflowPath, new URL(document.body.dataset.airflow, location.href)), {
      method: button.dataset.airflowMethod,
      headers: { 'Content-Type': 'application/json' },
      body: JSON.stringify(body),
    });
    if (answer.ok) {
      if (reason) cancel(button.closest('details.act'));
      tell(said, button.dataset.done);
    } else {
      const detail = (await answer.json().catch(() => ({}))).detail;
      const why = typeof detail === 'string' ? detail : `status ${answer.status}`;
      tell(said, `Airflow refused: ${why}.`, 'alarm');
    }
  } catch {
    tell(said, 'Airflow did not answer, so it is not known whether this was done.', 'alarm');
  } finally {
    busy.hidden = true;
    button.disabled = false;
    said.focus();
  }
}

document.addEventListener('click', (event) => {
  const button = event.target.closest('button[data-airflow-method]');
  if (button) {
    askAirflow(button);
    return;
  }
  const earlier = event.target.closest('button[data-offset]');
  if (earlier) {
    const form = document.querySelector('form[data-into]');
    const into = document.getElementById(form.dataset.into);
    values(form).then((body) => ask(form.action, { ...body, offset: Number(earlier.dataset.offset) }, into));
    return;
  }
  const link = event.target.closest('a[href]');
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
  if ('airflowPage' in link.dataset && window.parent !== window) {
    event.preventDefault();
    lead(link.href);
  } else if (!link.getAttribute('href').startsWith('#')) {
    busy.hidden = false;
  }
});
window.addEventListener('pageshow', () => (busy.hidden = true));

schedule();
tellZone();
