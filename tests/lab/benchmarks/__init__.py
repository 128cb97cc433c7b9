"""What a decision costs, beside a PING and beside other limiters: ``make bench``.

Every subject is one process that does nothing else; the subjects of a group take turns, round by round, where
``placement`` puts them. The best of many short blocks counts.
"""
