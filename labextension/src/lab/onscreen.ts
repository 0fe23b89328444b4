/** Which jobs are on the screen: the outputs and pages that show a job carry its id. */

/** Mark an element as the view of a job or study. */
export function markView(element: HTMLElement, id: string): void {
  element.dataset['distdlJob'] = id;
}

/** Return whether a view of this job is on the screen now, not scrolled away or in a hidden tab. */
export async function isOnScreen(id: string): Promise<boolean> {
  const views = [...document.querySelectorAll(`[data-distdl-job="${CSS.escape(id)}"]`)];
  if (!views.length || document.hidden) return false;
  return new Promise((resolve) => {
    const observer = new IntersectionObserver((entries) => {
      observer.disconnect();
      resolve(entries.some(({ isIntersecting }) => isIntersecting));
    });
    for (const view of views) observer.observe(view);
  });
}
