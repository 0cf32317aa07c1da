// SPDX-License-Identifier: Apache-2.0
// Against the reference implementation: the Python package safetensors reads what we write, and we read what it writes.
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include <gtest/gtest.h>

#include <orthant/core/ckpt/safetensors_file.hpp>
#include <orthant/core/ckpt/safetensors_writer.hpp>
#include <orthant/tests/core/base/scratch_folder.hpp>

namespace orthant::ckpt {
namespace {

using orthant::testing::ScratchFolder;
using orthant::testing::spit;

/// Runs `program` with the file's path as its argument.
int run_python(const ScratchFolder& folder, const std::string& program) {
  spit(folder / "program.py", program);
  const std::string command = std::string("'") + ORTHANT_PYTHON + "' '" + (folder / "program.py").string() + "' '" +
                              (folder / "w").string() + "'";
  return std::system(command.c_str());
}

TEST(Interop, PythonReadsWhatWeWrite) {
  const ScratchFolder folder;
  const std::vector<float> f32{1.5f, -2.0f, 3.0f, 0.25f, 5.0f, 6.0f};
  const std::vector<double> f64{0.1};
  const std::vector<std::uint16_t> bf16{0x3f80, 0xc000};
  const std::vector<std::int64_t> i64{-5};
  const std::vector<std::uint8_t> u8{255, 0, 1};
  const auto bytes = [](const auto& values) { return std::as_bytes(std::span(values)); };
  write_safetensors(folder / "w",
                    {{"model.w", DType::f32, {2, 3}, bytes(f32)},
                     {"d", DType::f64, {1}, bytes(f64)},
                     {"h", DType::bf16, {2}, bytes(bf16)},
                     {"i", DType::i64, {}, bytes(i64)},
                     {"u", DType::u8, {3}, bytes(u8)},
                     {"none", DType::f32, {0, 4}, {}}},
                    {{"step", "3"}});
  EXPECT_EQ(run_python(folder, R"(
import sys, torch
from safetensors import safe_open
with safe_open(sys.argv[1], framework="pt") as f:
    assert f.metadata() == {"format": "pt", "step": "3"}, f.metadata()
    t = {name: f.get_tensor(name) for name in f.keys()}
wanted = {"model.w": torch.tensor([[1.5, -2.0, 3.0], [0.25, 5.0, 6.0]]), "d": torch.tensor([0.1], dtype=torch.float64),
          "h": torch.tensor([1.0, -2.0], dtype=torch.bfloat16), "i": torch.tensor(-5),
          "u": torch.tensor([255, 0, 1], dtype=torch.uint8), "none": torch.zeros(0, 4)}
assert t.keys() == wanted.keys(), t.keys()
for name, value in wanted.items():
    assert t[name].dtype == value.dtype and t[name].shape == value.shape and torch.equal(t[name], value), name
)"),
            0);
}

TEST(Interop, WeReadWhatPythonWrites) {
  const ScratchFolder folder;
  ASSERT_EQ(run_python(folder, R"(
import sys, torch
from safetensors.torch import save_file
save_file({"w": torch.arange(6, dtype=torch.float32).reshape(2, 3), "h": torch.tensor([1.0, 2.0], dtype=torch.bfloat16),
           "f16": torch.ones(3, dtype=torch.float16), "b": torch.tensor([True]), "none": torch.zeros(0)},
          sys.argv[1], metadata={"format": "pt"})
)"),
            0);
  const SafetensorsFile file(folder / "w");
  EXPECT_EQ(file.tensors().size(), 5u);
  EXPECT_EQ(file.dtype("w"), DType::f32);
  EXPECT_EQ(file.at("w").shape, (std::vector<std::int64_t>{2, 3}));
  const std::vector<float> wanted{0, 1, 2, 3, 4, 5};
  ASSERT_EQ(file.at("w").bytes.size(), 24u);
  EXPECT_EQ(std::memcmp(file.at("w").bytes.data(), wanted.data(), 24), 0);
  EXPECT_EQ(file.dtype("h"), DType::bf16);
  EXPECT_EQ(file.at("f16").dtype, "F16");
  EXPECT_EQ(file.at("none").bytes.size(), 0u);
  EXPECT_EQ(file.metadata().at("format"), "pt");
}

TEST(Interop, AFalseClaimFailsTheProgram) {
  const ScratchFolder folder;  // shows that the tests above can fail
  EXPECT_NE(run_python(folder, "assert False"), 0);
}

}  // namespace
}  // namespace orthant::ckpt
