"""A run, a comparison or a sweep as one page: ``report.html``, and its figures."""
