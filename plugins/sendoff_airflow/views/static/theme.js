// Take the fonts, the colours and the light or dark mode of the surrounding Airflow page, before anything is drawn.
'use strict';
(() => {
  // Our tokens, and those of Airflow's theme. An administrator can change that theme.
  const TAKEN = {
    '--face': 'fonts-body', '--code': 'fonts-mono',
    '--ground': 'colors-bg', '--rule': 'colors-border',
    '--ink': 'colors-fg', '--pale': 'colors-fg-muted', '--link': 'colors-fg-info',
    '--focus': 'colors-brand-focus-ring', '--go': 'colors-brand-solid', '--on-go': 'colors-brand-contrast',
  };
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
    const theirs = getComputedStyle(outer);
    for (const [name, token] of Object.entries(TAKEN)) {
      root.style.setProperty(name, theirs.getPropertyValue(`--chakra-${token}`)); // an empty value removes it
    }
    root.style.setProperty('--raised', 'color-mix(in srgb, var(--ground), var(--ink) 5%)');
  };
  follow();
  new MutationObserver(follow).observe(outer, { attributes: true, attributeFilter: ['class', 'data-theme'] });
})();
