"""A model of time in place of a model: what a pass, a load and a fetch take is modelled, all around them is real."""
