// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/data/batch_source.hpp>

#include <algorithm>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include <orthant/core/base/error.hpp>
#include <orthant/tests/core/base/scratch_folder.hpp>

namespace orthant::data {
namespace {

using orthant::testing::ScratchFolder;

/// A file whose token i is i, so that a token names its place.
TokenFile counting_file(const ScratchFolder& folder, std::int32_t size) {
  std::vector<std::int32_t> tokens(size);
  std::iota(tokens.begin(), tokens.end(), 0);
  TokenFileWriter writer(folder / "t", size);
  writer.append(tokens);
  writer.finish();
  return TokenFile(folder / "t");
}

struct Batch {
  Batch(std::int64_t seq_len, std::int64_t size)
      : count(size), inputs(seq_len * size, -7), targets(seq_len * size, -7) {}
  BatchView view() { return {count, inputs.data(), targets.data()}; }
  std::int64_t count;
  std::vector<std::int64_t> inputs, targets;
};

TEST(BatchSource, LaysSamplesOutSequenceFirstWithTargetsOneOn) {
  const ScratchFolder folder;
  const BatchSource source(counting_file(folder, 14), {.seq_len = 3, .global_batch = 2, .shuffle = false});
  EXPECT_EQ(source.sequences(), 4);
  Batch batch(3, 2);
  source.microbatch(1, 0, batch.view());
  EXPECT_EQ(batch.inputs, (std::vector<std::int64_t>{6, 9, 7, 10, 8, 11}));
  EXPECT_EQ(batch.targets, (std::vector<std::int64_t>{7, 10, 8, 11, 9, 12}));
}

TEST(BatchSource, GivesEverySampleOnceAnEpochAcrossSteps) {
  const ScratchFolder folder;
  const BatchSource source(counting_file(folder, 13), {.seq_len = 3, .global_batch = 3, .seed = 4});
  std::vector<std::int64_t> firsts;
  for (std::int64_t step = 0; step < 4; ++step) {  // 12 samples: three epochs of four
    Batch batch(3, 3);
    source.microbatch(step, 0, batch.view());
    firsts.insert(firsts.end(), batch.inputs.begin(), batch.inputs.begin() + 3);
  }
  for (auto epoch = firsts.begin(); epoch != firsts.end(); epoch += 4) {
    std::sort(epoch, epoch + 4);
    EXPECT_EQ(std::vector<std::int64_t>(epoch, epoch + 4), (std::vector<std::int64_t>{0, 3, 6, 9}));
  }
  EXPECT_EQ(source.epoch(1), 0);
  EXPECT_EQ(source.epoch(2), 1);
}

TEST(BatchSource, SamplesDoNotDependOnHowTheBatchIsDivided) {
  const ScratchFolder folder;
  const BatchSource source(counting_file(folder, 200), {.seq_len = 5, .global_batch = 12, .seed = 11});
  Batch whole(5, 12);
  source.microbatch(2, 0, whole.view());
  for (const std::int64_t share : {1, 2, 3, 4, 6}) {
    for (std::int64_t first = 0; first < 12; first += share) {
      Batch part(5, share);
      source.microbatch(2, first, part.view());
      for (std::int64_t s = 0; s < 5; ++s) {
        for (std::int64_t b = 0; b < share; ++b) {
          ASSERT_EQ(part.inputs[s * share + b], whole.inputs[s * 12 + first + b]);
          ASSERT_EQ(part.targets[s * share + b], whole.targets[s * 12 + first + b]);
        }
      }
    }
  }
}

TEST(BatchSource, RefusesWhatCannotBeServed) {
  const ScratchFolder folder;
  EXPECT_THROW(BatchSource(counting_file(folder, 4), {.seq_len = 4, .global_batch = 1}), DataError);
  EXPECT_THROW(BatchSource(counting_file(folder, 5), {.seq_len = 0, .global_batch = 1}), ConfigError);
  EXPECT_THROW(BatchSource(counting_file(folder, 5), {.seq_len = 4, .global_batch = 0}), ConfigError);
  const BatchSource source(counting_file(folder, 5), {.seq_len = 4, .global_batch = 2});
  Batch batch(4, 2);
  EXPECT_THROW(source.microbatch(0, 1, batch.view()), InternalError);
}

TEST(ValidationSource, GoesThroughInOrderAndMarksWhatIsAbsent) {
  const ScratchFolder folder;
  const ValidationSource source(counting_file(folder, 8), 2);
  EXPECT_EQ(source.sequences(), 3);
  EXPECT_EQ(source.batches(2), 2);
  Batch batch(2, 2);
  source.batch(0, batch.view());
  EXPECT_EQ(batch.inputs, (std::vector<std::int64_t>{0, 2, 1, 3}));
  source.batch(2, batch.view());
  EXPECT_EQ(batch.inputs, (std::vector<std::int64_t>{4, 0, 5, 0}));
  EXPECT_EQ(batch.targets, (std::vector<std::int64_t>{5, kIgnoreIndex, 6, kIgnoreIndex}));
}

}  // namespace
}  // namespace orthant::data
