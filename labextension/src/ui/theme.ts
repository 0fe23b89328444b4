/** Detects dark pages and theme changes, because curves have separate colours for light and dark pages. */

/** Return whether the text on this element's background would be light. */
export function isDark(element: Element): boolean {
  const { body } = element.ownerDocument;
  const light = body.getAttribute('data-jp-theme-light');
  if (light !== null) return light === 'false';
  const kind = body.getAttribute('data-vscode-theme-kind');
  if (kind !== null) return !kind.includes('light');
  return luminance(getComputedStyle(body).backgroundColor) < 0.4;
}

/** Call `changed` when the page's theme may have changed; return the function that unsubscribes. */
export function watchTheme(element: Element, changed: () => void): () => void {
  // JupyterLab hides the page while it sets the theme; elements have their sizes in the next frame.
  let frame = 0;
  const observer = new MutationObserver(() => {
    cancelAnimationFrame(frame);
    frame = requestAnimationFrame(changed);
  });
  observer.observe(element.ownerDocument.body, { attributes: true, attributeFilter: ['data-jp-theme-light', 'data-jp-theme-name', 'class'] });
  return () => {
    observer.disconnect();
    cancelAnimationFrame(frame);
  };
}

function luminance(color: string): number {
  const [r = 255, g = 255, b = 255, a = 1] = (color.match(/[\d.]+/g) ?? []).map(Number);
  return a === 0 ? 1 : (0.2126 * r + 0.7152 * g + 0.0722 * b) / 255;
}
