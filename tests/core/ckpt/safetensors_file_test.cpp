// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/ckpt/safetensors_file.hpp>

#include <cstdint>
#include <cstring>
#include <random>

#include <gtest/gtest.h>

#include <orthant/core/base/error.hpp>
#include <orthant/tests/core/base/scratch_folder.hpp>

namespace orthant::ckpt {
namespace {

using orthant::testing::ScratchFolder;
using orthant::testing::spit;

std::string file_bytes(std::uint64_t length, const std::string& header, const std::string& data) {
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &length, 8);
  return bytes + header + data;
}

std::string file_bytes(const std::string& header, const std::string& data) {
  return file_bytes(header.size(), header, data);
}

const std::string kGood = R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                          R"("b":{"dtype":"F16","shape":[1,2],"data_offsets":[8,12]}}  )";
const std::string kData = "01234567abcd";

TEST(SafetensorsFile, ReadsAForeignFile) {
  const ScratchFolder folder;
  spit(folder / "f", file_bytes(kGood, kData));
  SafetensorsFile first(folder / "f");
  const SafetensorsFile file = std::move(first);
  EXPECT_EQ(file.at("b").dtype, "F16");
  EXPECT_EQ(file.at("b").shape, (std::vector<std::int64_t>{1, 2}));
  EXPECT_EQ(std::memcmp(file.at("b").bytes.data(), "abcd", 4), 0);
  EXPECT_EQ(file.dtype("a"), DType::f32);
  EXPECT_THROW(file.dtype("b"), CheckpointError);  // F16 can be in a file, but Orthant does not compute with it
  EXPECT_THROW(file.at("c"), CheckpointError);
  EXPECT_TRUE(file.contains("a"));
  EXPECT_FALSE(file.contains("c"));
}

struct Damage {
  const char* claim;
  std::string bytes;
};

std::string with_entry(const std::string& entry, const std::string& data) {
  return file_bytes("{\"a\":" + entry + "}", data);
}

class DamagedFile : public ::testing::TestWithParam<Damage> {};

TEST_P(DamagedFile, IsRefusedByName) {
  const ScratchFolder folder;
  spit(folder / "f", GetParam().bytes);
  const std::string why = orthant::testing::thrown<CheckpointError>([&] { SafetensorsFile file(folder / "f"); });
  EXPECT_EQ(why.find((folder / "f").string()), 0u) << why;
}

INSTANTIATE_TEST_SUITE_P(
    Corpus, DamagedFile,
    ::testing::Values(
        Damage{"Empty", ""}, Damage{"SevenBytes", "1234567"}, Damage{"LengthOnly", file_bytes(1, "", "")},
        Damage{"HeaderCutOff", file_bytes(kGood.size() + 100, kGood, "")},
        Damage{"HugeLength", file_bytes(UINT64_MAX, kGood, kData)},
        Damage{"LengthThatOverflowsWithItsOwnEight", file_bytes(UINT64_MAX - 7, kGood, kData)},
        Damage{"LengthOverTheLimit", file_bytes(100'000'001, kGood, kData)}, Damage{"EmptyHeader", file_bytes("", "")},
        Damage{"BlankFirst", file_bytes(" " + kGood, kData)}, Damage{"NoObject", file_bytes("[]", "")},
        Damage{"NotJson", file_bytes("{\"a\":", "")}, Damage{"TwoDocuments", file_bytes("{}{}", "")},
        Damage{"InvalidUtf8", file_bytes("{\"\xff\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}", "")},
        Damage{"DeepNesting", file_bytes("{\"a\":" + std::string(100000, '['), "")},
        Damage{
            "DuplicateTensor",
            file_bytes(
                R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
                "x")},
        Damage{"DuplicateField", with_entry(R"({"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]})", "x")},
        Damage{"DuplicateMetadata", file_bytes(R"({"__metadata__":{"x":"1","x":"2"}})", "")},
        Damage{"MetadataNotText", file_bytes(R"({"__metadata__":{"x":1}})", "")},
        Damage{"MetadataNoObject", file_bytes(R"({"__metadata__":"x"})", "")},
        Damage{"EntryNoObject", with_entry("3", "")},
        Damage{"FieldMissing", with_entry(R"({"dtype":"U8","shape":[1]})", "x")},
        Damage{"FieldTooMany", with_entry(R"({"dtype":"U8","shape":[1],"data_offsets":[0,1],"extra":1})", "x")},
        Damage{"UnknownDtype", with_entry(R"({"dtype":"F31","shape":[1],"data_offsets":[0,4]})", "1234")},
        Damage{"DtypeNotText", with_entry(R"({"dtype":7,"shape":[1],"data_offsets":[0,4]})", "1234")},
        Damage{"NegativeShape", with_entry(R"({"dtype":"U8","shape":[-1],"data_offsets":[0,1]})", "x")},
        Damage{"FractionalShape", with_entry(R"({"dtype":"U8","shape":[1.0],"data_offsets":[0,1]})", "x")},
        Damage{"ShapeOverflow",
               with_entry(R"({"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0]})", "")},
        Damage{"ShapeOverflowInBits",
               with_entry(R"({"dtype":"F64","shape":[288230376151711744],"data_offsets":[0,0]})", "")},
        Damage{"HugeShapeNumber",
               with_entry(R"({"dtype":"U8","shape":[99999999999999999999999],"data_offsets":[0,1]})", "x")},
        Damage{"HalfAByte", with_entry(R"({"dtype":"F4","shape":[3],"data_offsets":[0,2]})", "xy")},
        Damage{"ShapeNoArray", with_entry(R"({"dtype":"U8","shape":1,"data_offsets":[0,1]})", "x")},
        Damage{"ThreeOffsets", with_entry(R"({"dtype":"U8","shape":[1],"data_offsets":[0,1,1]})", "x")},
        Damage{"NegativeOffset", with_entry(R"({"dtype":"U8","shape":[1],"data_offsets":[-1,0]})", "x")},
        Damage{"OffsetsBackwards", with_entry(R"({"dtype":"U8","shape":[1],"data_offsets":[1,0]})", "x")},
        Damage{"OffsetsPastTheEnd", with_entry(R"({"dtype":"U8","shape":[2],"data_offsets":[0,2]})", "x")},
        Damage{"SizeNotTheShapes", with_entry(R"({"dtype":"U8","shape":[2],"data_offsets":[0,1]})", "x")},
        Damage{"HoleFirst", with_entry(R"({"dtype":"U8","shape":[1],"data_offsets":[1,2]})", "xy")},
        Damage{"BytesAfterTheLast", with_entry(R"({"dtype":"U8","shape":[1],"data_offsets":[0,1]})", "xy")},
        Damage{
            "HoleBetween",
            file_bytes(
                R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}})",
                "xyz")},
        Damage{
            "Overlap",
            file_bytes(
                R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
                "xyz")},
        Damage{
            "SamePlaceTwice",
            file_bytes(
                R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
                "x")},
        Damage{"EmptyName", file_bytes(R"({"":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", "x")},
        Damage{
            "LongName",
            file_bytes("{\"" + std::string(5000, 'n') + R"(":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", "x")}),
    [](const auto& test) { return std::string(test.param.claim); });

TEST(SafetensorsFile, EveryTruncationIsRefused) {
  const ScratchFolder folder;
  const std::string good = file_bytes(kGood, kData);
  for (std::size_t size = 0; size < good.size(); ++size) {
    spit(folder / "f", good.substr(0, size));
    EXPECT_THROW(SafetensorsFile(folder / "f"), CheckpointError) << size;
  }
}

TEST(SafetensorsFile, RandomDamageIsRefusedOrHarmless) {
  const ScratchFolder folder;
  std::mt19937 random(7);
  const std::string good = file_bytes(kGood, kData);
  for (int round = 0; round < 400; ++round) {
    std::string bytes = good;
    for (int flips = 0; flips < 3; ++flips) bytes[random() % (8 + kGood.size())] = static_cast<char>(random());
    spit(folder / "f", bytes);
    try {
      const SafetensorsFile file(folder / "f");
      std::size_t total = 0;
      for (const auto& [name, tensor] : file.tensors()) total += tensor.bytes.size();
      EXPECT_LE(total, bytes.size());
    } catch (const CheckpointError&) {
      // The only error that may come out.
    }
  }
}

TEST(SafetensorsFile, AMissingFileIsACheckpointError) {
  EXPECT_THROW(SafetensorsFile("/nonexistent/f"), CheckpointError);
  EXPECT_THROW(SafetensorsFile("/"), CheckpointError);
}

}  // namespace
}  // namespace orthant::ckpt
