"""Source code as graphs: parsing, instances, encoding, files of VarMisuse."""
