/** plotly's figure widget, which waits for its drawing code instead of bringing it along. */
import type { Context } from '../anywidget';
import { engine, type Factory } from '../engine';

type Widget = ReturnType<Factory>;

export default () => {
  let begun: Promise<Widget> | undefined;
  const begin = (context: Pick<Context, 'model'>): Promise<Widget> =>
    (begun ??= engine().then(async (factory) => {
      const widget = factory();
      await widget.initialize?.(context);
      return widget;
    }));
  return {
    // Not awaited: anywidget gives up on a model that is not there after two seconds.
    initialize(context: Pick<Context, 'model'>): void {
      void begin(context);
    },
    async render(context: Context): Promise<unknown> {
      return (await begin(context)).render?.(context);
    },
  };
};
