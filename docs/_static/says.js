/**
 * Brings the entry of a sentence into view: `troubleshooting.html#says=<sentence>`. Messages of the package link so.
 *
 * The fragment of an address is never sent to a server: a sentence may hold names.
 */
(() => {
  const plain = (text) => text.replaceAll('`', '').replace(/\s+/g, ' ').trim().toLowerCase();
  const escaped = (text) => text.replace(/[.*+?^${}()|[\]\\/]/g, '\\$&');

  /** Return the words of a heading, without the sign that links to it. */
  const wordsOf = (heading) => {
    const copy = heading.cloneNode(true);
    copy.querySelectorAll('.headerlink').forEach((link) => link.remove());
    return plain(copy.textContent);
  };

  let entries = null;

  /** Return each heading with its own words in number, and what finds it in a sentence; `…` stands for any text. */
  const read = () => [...document.querySelectorAll('article h3')].map((heading) => {
    const words = wordsOf(heading);
    const ended = words.replace(/[\s.:…]+$/, '');
    const border = words[ended.length] === '…' ? '' : '(?![\\p{L}\\d])';
    // A sentence may be followed by its remedy, and what comes before it may be a name.
    const pattern = new RegExp(`(?<![\\p{L}\\d])${ended.split('…').map(escaped).join('.*?')}${border}`, 'u');
    return { heading, own: words.replaceAll('…', '').length, pattern };
  });

  /** Return the heading with the most words of its own that stand in the sentence. */
  const entryOf = (sentence) => {
    entries ??= read();
    const found = entries.filter(({ pattern }) => pattern.test(sentence));
    return found.reduce((best, one) => (best && best.own >= one.own ? best : one), null)?.heading;
  };

  const show = () => {
    document.querySelectorAll('.distdl-said').forEach((element) => element.classList.remove('distdl-said'));
    document.querySelector('.distdl-unsaid')?.remove();
    const given = /^#says=(.*)$/s.exec(location.hash)?.[1];
    if (given === undefined) return;
    let sentence = given;
    try {
      sentence = decodeURIComponent(given);
    } catch {
      // Not written by this package: looked for as it stands.
    }
    const heading = entryOf(plain(sentence));
    if (!heading) {
      const note = document.createElement('p');
      note.className = 'distdl-unsaid';
      note.setAttribute('role', 'status');
      note.textContent = `No entry was found for: ${sentence.trim()}`;
      document.querySelector('article h1').after(note);
      scrollTo(0, 0);
      return;
    }
    const entry = heading.closest('section') ?? heading;
    entry.classList.add('distdl-said');
    entry.tabIndex = -1;
    entry.focus({ preventScroll: true });
    entry.scrollIntoView({ block: 'center' });
  };

  addEventListener('hashchange', show);
  addEventListener('DOMContentLoaded', show);
})();
