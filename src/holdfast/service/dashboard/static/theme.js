// Theme: system, light or dark; stored in the browser.

const KEY = "holdfast theme";
const ORDER = ["system", "light", "dark"];

const stored = () => {
  try {
    return ORDER.includes(localStorage.getItem(KEY)) ? localStorage.getItem(KEY) : "system";
  } catch {
    return "system";
  }
};

export function useTheme(theme = stored()) {
  document.documentElement.dataset.theme = theme;
}

export function nextTheme() {
  const theme = ORDER[(ORDER.indexOf(document.documentElement.dataset.theme) + 1) % ORDER.length];
  try {
    localStorage.setItem(KEY, theme);
  } catch {
    // Storage is blocked: the choice lasts until the page is closed.
  }
  useTheme(theme);
}

export const themeLabel = () => `Theme: ${document.documentElement.dataset.theme}`;
