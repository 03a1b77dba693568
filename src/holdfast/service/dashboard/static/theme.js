// Light, dark, or as the system has it; remembered in this browser.

const KEY = "holdfast theme";
const ORDER = ["system", "light", "dark"];

const chosen = () => {
  try {
    return ORDER.includes(localStorage.getItem(KEY)) ? localStorage.getItem(KEY) : "system";
  } catch {
    return "system";
  }
};

export function useTheme(theme = chosen()) {
  document.documentElement.dataset.theme = theme;
}

export function nextTheme() {
  const theme = ORDER[(ORDER.indexOf(document.documentElement.dataset.theme) + 1) % ORDER.length];
  try {
    localStorage.setItem(KEY, theme);
  } catch {
    // It holds until the page is left.
  }
  useTheme(theme);
}

export const themeLabel = () => `Theme: ${document.documentElement.dataset.theme}`;
