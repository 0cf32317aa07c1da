// SPDX-License-Identifier: Apache-2.0
// A checkpoint of a small table, written in one cut and read in others, damaged in every way and found out.
#include <fstream>
#include <numeric>
#include <random>

#include <gtest/gtest.h>

#include <orthant/core/base/error.hpp>
#include <orthant/core/ckpt/checkpoint_folder.hpp>
#include <orthant/core/ckpt/checkpoint_reader.hpp>
#include <orthant/core/ckpt/folder_lock.hpp>
#include <orthant/core/ckpt/shard_writer.hpp>
#include <orthant/tests/core/base/scratch_folder.hpp>

namespace orthant::ckpt {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kRows = 7, kColumns = 5;

RunState state_of(std::int64_t step) {
  return {.run = "00c0ffee00c0ffee",
          .step = step,
          .samples = 24 * step,
          .seed = 1,
          .mesh = "pp1 dp2 tp1",
          .config = "[train]\nseed = 1\n",
          .config_hash = 7,
          .data = 8};
}

/// A matrix "w" [7, 5] of two ranks (cut inside a row) and a vector "n" [5] of one, with moments.
struct Saved {
  std::vector<float> matrix = std::vector<float>(kRows * kColumns);
  std::vector<float> vector = std::vector<float>(kColumns);

  explicit Saved(float first) {
    std::iota(matrix.begin(), matrix.end(), first);
    std::iota(vector.begin(), vector.end(), first + 1000);
  }

  std::vector<StatePiece> pieces(int rank) const {
    std::vector<StatePiece> pieces;
    for (const auto kind : kStateKinds) {
      const shard::Placement whole = shard::replicate({kRows, kColumns});
      const auto [begin, end] = rank == 0 ? std::pair(0, 13) : std::pair(13, 35);
      for (const auto& block : whole.blocks_within(begin, end)) {
        pieces.push_back({.parameter = "w",
                          .kind = kind,
                          .shape = {kRows, kColumns},
                          .updates = 3,
                          .type = DType::f32,
                          .rows = block.rows,
                          .columns = block.columns,
                          .bytes = std::as_bytes(std::span(matrix).subspan(block.local, block.numel()))});
      }
      if (rank == 1)
        pieces.push_back({.parameter = "n",
                          .kind = kind,
                          .shape = {kColumns},
                          .updates = 3,
                          .type = DType::f32,
                          .rows = {0, 1},
                          .columns = {0, kColumns},
                          .bytes = std::as_bytes(std::span(vector))});
    }
    return pieces;
  }
};

class Checkpoint : public ::testing::Test {
 protected:
  orthant::testing::ScratchFolder temporary;
  CheckpointFolder folder{temporary / "checkpoints", "00c0ffee00c0ffee"};

  void SetUp() override { folder.prepare(0); }

  void save(std::int64_t step, const Saved& saved) {
    folder.begin(step);
    std::vector<std::string> parts;
    for (const int rank : {0, 1})
      parts.push_back(part_text(write_shard(folder.pending(step), rank, state_of(step), saved.pieces(rank))));
    folder.commit(merge_parts(state_of(step), parts));
  }

  std::string what_is_wrong(std::int64_t step) {
    try {
      const auto faults = CheckpointReader(folder.committed(step)).verify();
      return faults.empty() ? "" : faults.front();
    } catch (const CheckpointError& error) {
      return error.what();
    }
  }
};

TEST_F(Checkpoint, IsReadInAnyCut) {
  const Saved saved(0);
  save(10, saved);
  CheckpointReader reader(folder.committed(10));
  EXPECT_EQ(reader.index().state.samples, 240);
  EXPECT_EQ(reader.index().parameters.at("w").updates, 3);
  EXPECT_TRUE(reader.verify().empty());
  for (std::int64_t r = 0; r < kRows; ++r) {
    for (std::int64_t c = 0; c < kColumns; ++c) {
      for (std::int64_t rows = 1; r + rows <= kRows; ++rows) {
        for (std::int64_t columns = 1; c + columns <= kColumns; ++columns) {
          std::vector<float> out(static_cast<std::size_t>(rows * columns));
          reader.read("w", StateKind::exp_avg, {r, r + rows}, {c, c + columns}, std::as_writable_bytes(std::span(out)));
          for (std::int64_t i = 0; i < rows * columns; ++i)
            ASSERT_EQ(out[i], saved.matrix[(r + i / columns) * kColumns + c + i % columns]);
        }
      }
    }
  }
}

TEST_F(Checkpoint, FindsEveryChangedByte) {
  save(10, Saved(0));
  for (const auto& entry : fs::directory_iterator(folder.committed(10))) {
    const auto size = fs::file_size(entry);
    for (std::uintmax_t at = 0; at < size; ++at) {
      std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
      file.seekg(static_cast<std::streamoff>(at));
      const char was = static_cast<char>(file.get());
      const auto put = [&](char value) {
        file.seekp(static_cast<std::streamoff>(at));
        file.put(value).flush();
      };
      put(static_cast<char>(was ^ (1 << at % 8)));
      const auto found = what_is_wrong(10);
      put(was);
      ASSERT_NE(found, "") << entry.path() << " byte " << at;
      ASSERT_NE(found.find(entry.path().filename().string()), std::string::npos) << found;
    }
  }
  EXPECT_EQ(what_is_wrong(10), "");
}

TEST_F(Checkpoint, NamesWhatIsDamaged) {
  save(10, Saved(0));
  save(20, Saved(50));
  const auto ten = folder.committed(10), twenty = folder.committed(20);
  const auto restored = [&](const char* name, auto damage) {
    fs::copy_file(twenty / name, temporary / "kept", fs::copy_options::overwrite_existing);
    damage(twenty / name);
    const auto found = what_is_wrong(20);
    fs::remove(twenty / name);
    fs::copy_file(temporary / "kept", twenty / name);
    return found;
  };
  const char* first = "rank-00000.safetensors";
  EXPECT_NE(restored(first, [](const fs::path& p) { fs::resize_file(p, fs::file_size(p) - 1); }).find("the index says"),
            std::string::npos);
  EXPECT_NE(restored(first, [](const fs::path& p) { fs::resize_file(p, 0); }).find("has 0 bytes"), std::string::npos);
  EXPECT_NE(restored(first, [](const fs::path& p) { fs::remove(p); }).find("is missing"), std::string::npos);
  EXPECT_NE(
      restored(first, [&](const fs::path& p) { fs::copy_file(ten / first, p, fs::copy_options::overwrite_existing); })
          .find("it is of step 10"),
      std::string::npos);
  EXPECT_NE(restored(first,
                     [&](const fs::path& p) {
                       fs::copy_file(twenty / "rank-00001.safetensors", p, fs::copy_options::overwrite_existing);
                     })
                .find(first),
            std::string::npos);
  EXPECT_NE(restored(first,
                     [&](const fs::path& p) {
                       fs::remove(p);
                       fs::create_symlink(ten / first, p);
                     })
                .find("no regular file"),
            std::string::npos);
  EXPECT_EQ(what_is_wrong(20), "");
}

TEST(CheckpointIndexText, RefusesWhatDoesNotTile) {
  const auto index = [](std::vector<Slice> slices) {
    CheckpointIndex made{.state = state_of(1), .files = {{"rank-00000.safetensors", 100, 1}}, .parameters = {}};
    made.parameters["w"] = {
        .shape = {4, 4}, .updates = 1, .tensors = {{StateKind::master, {DType::f32, std::move(slices)}}}};
    return made.text();
  };
  const auto fault = [](const std::string& text) -> std::string {
    try {
      CheckpointIndex::parse(text, "index.json");
      return "";
    } catch (const CheckpointError& error) {
      return error.what();
    }
  };
  EXPECT_EQ(fault(index({{{0, 4}, {0, 4}, 0, 5}})), "");
  EXPECT_EQ(fault(index({{{0, 4}, {0, 2}, 0, 5}, {{0, 4}, {2, 4}, 0, 5}})), "");
  EXPECT_NE(fault(index({{{0, 4}, {0, 3}, 0, 5}})).find("12 of its 16 elements"), std::string::npos);
  EXPECT_NE(fault(index({{{0, 4}, {0, 2}, 0, 5}, {{0, 4}, {1, 3}, 0, 5}})).find("overlap"), std::string::npos);
  EXPECT_NE(fault(index({{{0, 4}, {0, 2}, 0, 5}, {{2, 6}, {2, 4}, 0, 5}})).find("not of it"), std::string::npos);
  EXPECT_NE(fault(index({{{0, 4}, {0, 4}, 1, 5}})).find("not of it"), std::string::npos);
}

TEST(CheckpointIndexText, RefusesForeignFiles) {
  for (const char* name :
       {"../rank-00000.safetensors", "/etc/passwd", "rank-1/../x.safetensors", "rank-.safetensors", "", "index.json"}) {
    CheckpointIndex index{.state = state_of(1), .files = {{name, 100, 1}}, .parameters = {}};
    EXPECT_THROW(CheckpointIndex::parse(index.text(), "index.json"), CheckpointError) << name;
  }
  for (const char* text : {"", "{", "[]", "{}", "{\"format\":\"orthant-checkpoint\",\"version\":2}", "null"})
    EXPECT_THROW(CheckpointIndex::parse(text, "index.json"), CheckpointError) << text;
}

TEST_F(Checkpoint, CommittedStepsAreThoseWithAnIndexAndTheRightName) {
  save(20, Saved(0));
  save(100, Saved(0));
  folder.begin(200);  // not committed
  for (const char* name : {"step-5", "step-00000005x", "xstep-00000005", "step-00000006.tmp-0", "notes"})
    fs::create_directories(folder.path() / name / "index.json");
  fs::create_directories(folder.path() / "step-00000007");  // without an index
  EXPECT_EQ(folder.steps(), (std::vector<std::int64_t>{20, 100}));
  EXPECT_EQ(CheckpointFolder(temporary / "nowhere", "0").steps(), std::vector<std::int64_t>{});
}

TEST_F(Checkpoint, AStepIsReplacedWhole) {
  save(10, Saved(0));
  save(10, Saved(70));
  CheckpointReader reader(folder.committed(10));
  float first = 0;
  reader.read("w", StateKind::master, {0, 1}, {0, 1}, std::as_writable_bytes(std::span(&first, 1)));
  EXPECT_EQ(first, 70);
  EXPECT_FALSE(fs::exists(folder.pending(10)));
}

TEST_F(Checkpoint, KeepsTheNewestAndSetsAsideAnotherFuture) {
  for (const int step : {10, 20, 30, 40}) save(step, Saved(0));
  folder.retain(3);
  EXPECT_EQ(folder.steps(), (std::vector<std::int64_t>{20, 30, 40}));
  EXPECT_EQ(folder.set_aside_above(20), (std::vector<std::int64_t>{30, 40}));
  EXPECT_EQ(folder.steps(), (std::vector<std::int64_t>{20}));
  EXPECT_TRUE(fs::exists(folder.path() / "set-aside-step-00000040-00c0ffee00c0ffee" / "index.json"));
}

TEST_F(Checkpoint, CleansUpItsOwnLeftoversOnly) {
  save(10, Saved(0));
  const auto kept = temporary / "elsewhere";
  fs::create_directories(kept / "inside");
  for (const char* name :
       {"step-00000020.tmp-00c0ffee00c0ffee", ".trash-step-00000005-ab", "step-00000020.tmp-XYZ", "mine.tmp-ab"})
    fs::create_directories(folder.path() / name);
  fs::create_directory_symlink(kept, folder.path() / "step-00000020.tmp-00c0ffee00c0ffee" / "link");
  fs::create_directory_symlink(kept, folder.path() / ".trash-step-00000007-ab");
  EXPECT_EQ(folder.clean_up(),
            (std::vector<std::string>{".trash-step-00000005-ab", "step-00000020.tmp-00c0ffee00c0ffee"}));
  EXPECT_TRUE(fs::exists(kept / "inside"));
  EXPECT_TRUE(fs::exists(folder.path() / "step-00000020.tmp-XYZ"));
  EXPECT_TRUE(fs::exists(folder.path() / "mine.tmp-ab"));
  EXPECT_EQ(folder.steps(), (std::vector<std::int64_t>{10}));
}

TEST_F(Checkpoint, OneRunAtATime) {
  std::optional<FolderLock> first(std::in_place, folder.path(), "aa");
  try {
    const FolderLock second(folder.path(), "bb");
    FAIL() << "two hold it";
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find("run aa"), std::string::npos) << error.what();
  }
  first.reset();
  const FolderLock third(folder.path(), "cc");  // the file is still there, nobody holds it
}

}  // namespace
}  // namespace orthant::ckpt
