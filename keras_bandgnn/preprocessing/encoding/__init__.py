"""Layers from raw data, such as SMILES or ASE atoms, to graphs."""
