"""Compiled training of small models: the same bits in any company and on every processor.

Arithmetic is IEEE, sums have a written order, nothing is contracted or reassociated, and elementary
functions are our own. So the width of a processor's registers decides no digit.
"""
