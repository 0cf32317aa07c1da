// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/base/atomic_file.hpp>

#include <csignal>

#include <sys/resource.h>
#include <sys/stat.h>

#include <gtest/gtest.h>

#include <orthant/core/base/error.hpp>
#include <orthant/core/base/mapped_file.hpp>
#include <orthant/tests/core/base/scratch_folder.hpp>

namespace orthant {
namespace {

using testing::ScratchFolder;
using testing::slurp;
using testing::spit;
using testing::thrown;

std::size_t files_in(const ScratchFolder& folder) {
  return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(folder.path()), {}));
}

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

TEST(AtomicFile, AppearsOnlyAtCommitAndWithItsMode) {
  const ScratchFolder folder;
  AtomicFile file(folder / "a", 0600, raise_as<DataError>);
  file.append(bytes_of("one "));
  file.append(bytes_of("two"));
  file.write_at(0, bytes_of("ONE"));
  EXPECT_FALSE(std::filesystem::exists(folder / "a"));
  file.commit();
  EXPECT_EQ(slurp(folder / "a"), "ONE two");
  EXPECT_EQ(files_in(folder), 1u);
  struct stat status {};
  ASSERT_EQ(::stat((folder / "a").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
}

TEST(AtomicFile, WithoutCommitLeavesTheOldFileAndNothingElse) {
  const ScratchFolder folder;
  spit(folder / "a", "old");
  {
    AtomicFile file(folder / "a", 0644, raise_as<DataError>);
    file.append(bytes_of("new"));
    const AtomicFile moved = std::move(file);
  }
  EXPECT_EQ(slurp(folder / "a"), "old");
  EXPECT_EQ(files_in(folder), 1u);
}

TEST(AtomicFile, AFailedWriteIsAnErrorAndKeepsTheOldFile) {
  const ScratchFolder folder;
  spit(folder / "a", "old");
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  auto* const handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{1000, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const std::string why =
      thrown<DataError>([&] { write_text_file(folder / "a", std::string(5000, 'x'), raise_as<DataError>); });
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_NE(why.find("make room"), std::string::npos) << why;
  EXPECT_EQ(slurp(folder / "a"), "old");
  EXPECT_EQ(files_in(folder), 1u);
}

TEST(AtomicFile, AMissingFolderIsTheCallersKindOfError) {
  const auto write = [] { write_text_file("/nonexistent/a", "x", raise_as<CheckpointError>); };
  EXPECT_NE(thrown<CheckpointError>(write).find("make the folder first"), std::string::npos);
}

TEST(MappedFile, ShowsTheBytesAndRefusesWhatIsNoFile) {
  const ScratchFolder folder;
  spit(folder / "a", "text");
  spit(folder / "empty", "");
  MappedFile file(folder / "a", raise_as<DataError>);
  const MappedFile moved = std::move(file);
  EXPECT_EQ(moved.text(), "text");
  EXPECT_TRUE(MappedFile(folder / "empty", raise_as<DataError>).bytes().empty());
  EXPECT_THROW(MappedFile(folder.path(), raise_as<DataError>), DataError);
  EXPECT_THROW(MappedFile(folder / "absent", raise_as<DataError>), DataError);
}

}  // namespace
}  // namespace orthant
