# SPDX-License-Identifier: Apache-2.0
"""Reading and comparing final answers: text in, a small typed value out, equality decided.

The way of an answer: ``extract`` (which part of a response is the answer), ``clean`` (one spelling
for each notation), ``lexer`` and ``parser`` (an expression tree), ``reader`` (what kind of thing
it is), ``compare`` (equality). Everything up to here is plain Python, bounded and quick. What
exact rational arithmetic cannot decide goes to a child process, where ``worker`` repeats the
comparison with the high-precision arithmetic of ``numeric`` and, for calculus notation, sympy.
The conventions stand in docs/verification.md.
"""
