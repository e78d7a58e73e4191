# SPDX-License-Identifier: Apache-2.0
"""twin_model.py MODEL.gguf OUT.gguf [TYPE]: the same model, its matrices in another format of the gguf package (Q4_0, the default, Q4_1, Q5_0, Q8_0):
a draft of the same vocabulary, which is smaller and often, not always, right."""
import sys

from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter, quants


def write(source, path, kind="Q4_0"):
    """A matrix is one whose values are in blocks; what is plain floats is copied."""
    reader = GGUFReader(str(source))
    writer = GGUFWriter(str(path), reader.fields["general.architecture"].contents())
    for field in reader.fields.values():
        if not field.name.startswith("GGUF.") and field.name != "general.architecture":
            writer.add_key_value(field.name, field.contents(), field.types[0], field.types[-1] if field.types[0] == GGUFValueType.ARRAY else None)
    encoding = GGMLQuantizationType[kind]
    for tensor in reader.tensors:
        plain = tensor.tensor_type in (GGMLQuantizationType.F32, GGMLQuantizationType.F16)
        data = tensor.data if plain else quants.quantize(quants.dequantize(tensor.data, tensor.tensor_type), encoding)
        writer.add_tensor(tensor.name, data, raw_dtype=tensor.tensor_type if plain else encoding)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


if __name__ == "__main__":
    write(*sys.argv[1:])
