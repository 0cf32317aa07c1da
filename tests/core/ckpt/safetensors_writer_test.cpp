// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/ckpt/safetensors_writer.hpp>

#include <cstdint>
#include <cstring>

#include <gtest/gtest.h>

#include <orthant/core/base/error.hpp>
#include <orthant/core/ckpt/safetensors_file.hpp>
#include <orthant/tests/core/base/scratch_folder.hpp>

namespace orthant::ckpt {
namespace {

using orthant::testing::ScratchFolder;
using orthant::testing::slurp;
using orthant::testing::spit;

template <class T>
std::span<const std::byte> bytes_of(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}

bool same(std::span<const std::byte> a, std::span<const std::byte> b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0);
}

TEST(WriteSafetensors, ReadsBackEveryTypeShapeAndName) {
  const ScratchFolder folder;
  const std::vector<std::uint8_t> u8{1, 2, 3};
  const std::vector<std::int64_t> i64{-1, 1LL << 40};
  const std::vector<std::uint16_t> bf16{0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0};
  const std::vector<float> f32{1.5f};
  const std::vector<double> f64{0.1, 0.2};
  const std::vector<TensorEntry> entries{
      {"byte\"s \u00e9", DType::u8, {3}, bytes_of(u8)}, {"long", DType::i64, {2, 1}, bytes_of(i64)},
      {"half", DType::bf16, {2, 3}, bytes_of(bf16)},    {"scalar", DType::f32, {}, bytes_of(f32)},
      {"double", DType::f64, {2}, bytes_of(f64)},       {"empty", DType::f32, {0, 5}, {}}};
  write_safetensors(folder / "w", entries, {{"step", "12"}});
  const SafetensorsFile file(folder / "w");
  ASSERT_EQ(file.tensors().size(), entries.size());
  for (const TensorEntry& entry : entries) {
    EXPECT_EQ(file.dtype(entry.name), entry.dtype) << entry.name;
    EXPECT_EQ(file.at(entry.name).shape, entry.shape) << entry.name;
    EXPECT_TRUE(same(file.at(entry.name).bytes, entry.bytes)) << entry.name;
    const auto address = reinterpret_cast<std::uintptr_t>(file.at(entry.name).bytes.data());
    EXPECT_EQ(address % size_of(entry.dtype), 0u) << entry.name;
  }
  EXPECT_EQ(file.metadata(), (std::map<std::string, std::string>{{"format", "pt"}, {"step", "12"}}));
  EXPECT_EQ(std::filesystem::status(folder / "w").permissions(),
            std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
}

TEST(WriteSafetensors, HasTheFormatsBytes) {
  const ScratchFolder folder;
  const std::vector<std::uint8_t> b{7};
  const std::vector<float> a{1.0f};
  write_safetensors(folder / "w", {{"b", DType::u8, {1}, bytes_of(b)}, {"a", DType::f32, {1}, bytes_of(a)}});
  const std::string json = R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                           R"("b":{"dtype":"U8","shape":[1],"data_offsets":[4,5]}})";
  const std::string bytes = slurp(folder / "w");
  const std::size_t padded = (json.size() + 7) / 8 * 8;
  EXPECT_EQ(bytes[0], static_cast<char>(padded));
  EXPECT_EQ(bytes.substr(8, padded), json + std::string(padded - json.size(), ' '));
  EXPECT_EQ(bytes.substr(8 + padded), std::string("\0\0\x80\x3f\7", 5));
}

TEST(WriteSafetensors, DoesNotDependOnTheOrderOfEntries) {
  const ScratchFolder folder;
  const std::vector<float> x{1, 2}, y{3};
  const TensorEntry a{"a", DType::f32, {2}, bytes_of(x)}, b{"b", DType::f32, {1}, bytes_of(y)};
  write_safetensors(folder / "1", {a, b});
  write_safetensors(folder / "2", {b, a});
  EXPECT_EQ(slurp(folder / "1"), slurp(folder / "2"));
}

TEST(SafetensorsWriter, StreamsTensorsInAnyOrder) {
  const ScratchFolder folder;
  const std::vector<float> x{1, 2}, y{3};
  SafetensorsWriter writer(folder / "w", {{"a", DType::f32, {2}}, {"b", DType::f32, {1}}});
  writer.write("b", bytes_of(y));
  writer.write("a", bytes_of(x));
  EXPECT_FALSE(std::filesystem::exists(folder / "w"));
  writer.finish();
  write_safetensors(folder / "whole", {{"a", DType::f32, {2}, bytes_of(x)}, {"b", DType::f32, {1}, bytes_of(y)}});
  EXPECT_EQ(slurp(folder / "w"), slurp(folder / "whole"));
}

TEST(SafetensorsWriter, RefusesWhatWasNotAnnouncedAndKeepsTheOldFile) {
  const ScratchFolder folder;
  spit(folder / "w", "old");
  const std::vector<float> one{1}, two{1, 2};
  {
    SafetensorsWriter writer(folder / "w", {{"a", DType::f32, {1}}, {"b", DType::f32, {0}}});
    EXPECT_THROW(writer.write("c", bytes_of(one)), CheckpointError);
    EXPECT_THROW(writer.write("a", bytes_of(two)), CheckpointError);
    writer.write("a", bytes_of(one));
    EXPECT_THROW(writer.write("a", bytes_of(one)), CheckpointError);
    EXPECT_THROW(writer.finish(), CheckpointError);  // b is missing, even though it is empty
  }
  EXPECT_EQ(slurp(folder / "w"), "old");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
}

TEST(SafetensorsWriter, RefusesNamesAndShapesThatNoReaderTakes) {
  const ScratchFolder folder;
  const auto announce = [&](std::vector<TensorSpec> tensors) {
    SafetensorsWriter writer(folder / "w", std::move(tensors));
  };
  EXPECT_THROW(announce({{"", DType::f32, {1}}}), CheckpointError);
  EXPECT_THROW(announce({{"__metadata__", DType::f32, {1}}}), CheckpointError);
  EXPECT_THROW(announce({{"a", DType::f32, {1}}, {"a", DType::f64, {1}}}), CheckpointError);
  EXPECT_THROW(announce({{"\xff", DType::f32, {1}}}), CheckpointError);
  EXPECT_THROW(announce({{"a", DType::f32, {-1}}}), CheckpointError);
  EXPECT_THROW(announce({{"a", DType::f32, {INT64_MAX, 8}}}), CheckpointError);
  EXPECT_THROW(SafetensorsWriter("/nonexistent/w", {}), CheckpointError);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(SafetensorsWriter, ReplicatesAMetadataFormatGivenByTheCaller) {
  const ScratchFolder folder;
  write_safetensors(folder / "w", {}, {{"format", "np"}});
  EXPECT_EQ(SafetensorsFile(folder / "w").metadata().at("format"), "np");
  EXPECT_TRUE(SafetensorsFile(folder / "w").tensors().empty());
}

}  // namespace
}  // namespace orthant::ckpt
