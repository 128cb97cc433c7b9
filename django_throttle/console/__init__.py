"""App for operators: records of recent decisions, trials of edited rules, candidates, and costs of routes.

Add ``"django_throttle.console"`` to ``INSTALLED_APPS``, after ``"django_throttle"``. Without it, nothing is recorded.
"""
