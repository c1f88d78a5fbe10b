// Follows the light or the dark of the page of Airflow around this one, before anything is seen.
'use strict';
(() => {
  const root = document.documentElement;
  let outer = null;
  try {
    outer = window.parent === window ? null : window.parent.document.documentElement;
  } catch {
    return; // the frame is somebody else's: the browser's own preference stands
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
