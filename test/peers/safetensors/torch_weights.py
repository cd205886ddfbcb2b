"""Loads a safetensors file with torch and says what came, for torch_test.go."""

import json
import struct
import sys

sys.path.insert(0, sys.argv[2])

import torch  # noqa: E402
from roundhouse import weights  # noqa: E402

VALUES = {
    "F32": torch.arange(6, dtype=torch.float32).reshape(2, 3),
    "F16": torch.zeros((0, 3), dtype=torch.float16),
    "BF16": torch.arange(5, dtype=torch.float32).to(torch.bfloat16),
    "I64": torch.arange(-4, 4).reshape(2, 2, 2),
    "U8": torch.tensor(7, dtype=torch.uint8),  # makes what follows unaligned
    "BOOL": torch.tensor([True, False]),
    "F64": torch.tensor([1.5, -2.0], dtype=torch.float64),
    "C64": torch.tensor([1 + 2j], dtype=torch.complex64),
}


def raw(tensor):
    return bytes(tensor.contiguous().view(-1).view(torch.uint8).tolist()) if tensor.numel() and tensor.dim() else bytes(
        [tensor.item()]) if tensor.dim() == 0 else b""


header, data = {}, b""
for name, tensor in VALUES.items():
    content = raw(tensor)
    header[name] = {"dtype": name, "shape": list(tensor.shape), "data_offsets": [len(data), len(data) + len(content)]}
    data += content
# Types that this torch may not have come as bytes.
for name in ("U16", "F8_E4M3"):
    size = {"U16": 2, "F8_E4M3": 1}[name]
    header[name] = {"dtype": name, "shape": [4], "data_offsets": [len(data), len(data) + 4 * size]}
    data += b"\1" * 4 * size
encoded = json.dumps(header).encode()
with open(sys.argv[1], "wb") as file:
    file.write(struct.pack("<Q", len(encoded)) + encoded + data)

for loaded in (weights.load_safetensors(sys.argv[1], "cpu"), dict(weights.stream_safetensors(sys.argv[1], "cpu"))):
    assert set(loaded) == set(header)
    for name, want in VALUES.items():
        got = loaded[name]
        assert got.dtype == want.dtype and got.shape == want.shape and torch.equal(got, want), name
    for name, torch_name, size in (("U16", "uint16", 2), ("F8_E4M3", "float8_e4m3fn", 1)):
        known = getattr(torch, torch_name, None)
        got = loaded[name]
        assert got.dtype == (known or torch.uint8) and got.numel() == (4 if known else 4 * size), (name, got)
for name, tensor in weights.load_safetensors(sys.argv[1], "meta").items():
    assert tensor.device.type == "meta", name
mine = weights.load_safetensors(sys.argv[1], "cpu")
mine["F32"][0, 0] = 9
assert weights.load_safetensors(sys.argv[1], "cpu")["F32"][0, 0] == 0, "the file was written to"
print(json.dumps({"torch": torch.__version__, "tensors": len(header)}))
