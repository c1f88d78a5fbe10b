// Follow the light or dark mode of the surrounding Airflow page, before anything is drawn.
'use strict';
(() => {
  const root = document.documentElement;
  let outer = null;
  try {
    outer = window.parent === window ? null : window.parent.document.documentElement;
  } catch {
    return; // the frame is from another origin: keep the browser's preference
  }
  if (!outer) return;
  const follow = () => {
    const said = ['dark', 'light'].find((name) => outer.classList.contains(name) || outer.dataset.theme === name);
    if (said) root.dataset.theme = said;
    else delete root.dataset.theme;
  };
  follow();
  new MutationObserver(follow).observe(outer, { attributes: true, attributeFilter: ['class', 'data-theme'] });
})();
