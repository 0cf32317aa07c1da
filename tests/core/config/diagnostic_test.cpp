// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/config/diagnostic.hpp>

#include <gtest/gtest.h>

namespace orthant::config {
namespace {

TEST(EditDistance, CountsInsertionsDeletionsReplacementsAndSwaps) {
  EXPECT_EQ(edit_distance("", "abc"), 3);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3);
  EXPECT_EQ(edit_distance("setps", "steps"), 1);
  EXPECT_EQ(edit_distance("steps", "steps"), 0);
}

TEST(NearestName, FindsTyposAndLeavesStrangersAlone) {
  const std::vector<std::string> names{"steps", "seed", "seq_len", "global_batch"};
  EXPECT_EQ(nearest_name("setps", names), "steps");
  EXPECT_EQ(nearest_name("gloabl_bacth", names), "global_batch");
  EXPECT_EQ(nearest_name("colour", names), "");
  EXPECT_EQ(nearest_name("x", {"tp", "pp"}), "");  // a name changed whole is not near
}

Source at(int line, int column) { return {"c.toml", line, column, false}; }

TEST(FormatDiagnostics, ShowsPlaceKeyValueAndRemedyInFileOrder) {
  std::vector<Diagnostic> faults;
  const auto add = [&](Source source, std::string_view key, std::string_view found, std::string_view nearest) {
    faults.push_back({std::move(source), std::string(key), std::string(found), "is wrong", std::string(nearest)});
  };
  add({"c.toml", 0, 0, true}, "model.heads", "8", "");
  add(from_override(), "mesh.tp", "3", "");
  add(at(9, 0), "train.sed", "3", "train.seed");
  add(at(7, 4), "", "", "");
  EXPECT_EQ(format_diagnostics(faults),
            "c.toml:7:4: is wrong\n"
            "c.toml:9: train.sed = 3: is wrong; did you mean train.seed?\n"
            "--set: mesh.tp = 3: is wrong\n"
            "c.toml (default): model.heads = 8: is wrong\n");
}

}  // namespace
}  // namespace orthant::config
