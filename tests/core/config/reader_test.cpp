// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/config/reader.hpp>

#include <sstream>

#include <gtest/gtest.h>

#include <orthant/core/base/error.hpp>

namespace orthant::config {
namespace {

ConfigReader reader_of(const std::string& text, const std::vector<std::string>& overrides = {}) {
  return ConfigReader(ConfigDocument::parse(text, "c.toml", overrides));
}

struct Sample {
  std::int64_t steps, tp;
  double lr;
  std::vector<double> betas;
  std::string schedule, name;
  bool tied;
  bool operator==(const Sample&) const = default;
};

/// A small schema; every test reads through it.
Sample read_sample(ConfigReader& reader) {
  Sample sample;
  sample.name = reader.text("name", "run");
  sample.steps = reader.integer("train.steps", 100, {.min = 1});
  sample.lr = reader.number("optimizer.lr", 1e-3, {.min = 0.0});
  sample.betas = reader.numbers("optimizer.betas", {0.9, 0.95}, {.size = 2, .min = 0.0, .max = 1.0});
  sample.tp = reader.integer("mesh.tp", 1, {.min = 1, .max = 1024});
  sample.schedule = reader.choice("pipeline.schedule", "1f1b", {"gpipe", "1f1b", "zb_h1"});
  sample.tied = reader.boolean("model.tie_embeddings", false);
  return sample;
}

TEST(ConfigReader, ReadsEveryTypeAndFillsInDefaults) {
  ConfigReader reader = reader_of(
      "name = 'a b'\n[train]\nsteps = 1_000\n[optimizer]\nlr = 1\nbetas = [0, 0.99]\n[model]\ntie_embeddings = true\n");
  const Sample sample = read_sample(reader);
  reader.finish();
  reader.throw_if_errors();
  EXPECT_EQ(sample, (Sample{1000, 1, 1.0, {0.0, 0.99}, "1f1b", "a b", true}));
  EXPECT_TRUE(reader.is_set("train.steps"));
  EXPECT_FALSE(reader.is_set("mesh.tp"));
}

struct BadInput {
  const char* claim;
  std::string text;
  std::vector<std::string> overrides;
  std::string expected;
};

class BadConfig : public testing::TestWithParam<BadInput> {};

TEST_P(BadConfig, IsExplained) {
  ConfigReader reader = reader_of(GetParam().text, GetParam().overrides);
  read_sample(reader);
  reader.finish();
  EXPECT_EQ(reader.format_diagnostics(), GetParam().expected);
  EXPECT_THROW(reader.throw_if_errors(), ConfigError);
}

INSTANTIATE_TEST_SUITE_P(
    Table, BadConfig,
    testing::Values(
        BadInput{"UnknownKeyNearSibling",
                 "[train]\nstep = 3\n",
                 {},
                 "c.toml:2: train.step = 3: unknown key; did you mean train.steps?\n"},
        BadInput{"UnknownKeyOfAnotherTable",
                 "[train]\nlr = 3\n",
                 {},
                 "c.toml:2: train.lr = 3: unknown key; did you mean optimizer.lr?\n"},
        BadInput{"UnknownKeyNearNothing",
                 "[mesh]\ncolour = 'red'\n",
                 {},
                 "c.toml:2: mesh.colour = 'red': unknown key; [mesh] has tp\n"},
        BadInput{"UnknownTopLevelKey", "nmae = 'x'\n", {}, "c.toml:1: nmae = 'x': unknown key; did you mean name?\n"},
        BadInput{"UnknownTableOnce",
                 "[trian]\nsteps = 1\nfoo = 2\n",
                 {},
                 "c.toml:1: trian: unknown table; did you mean train?\n"},
        BadInput{"TableForKey", "[train.steps]\nx = 1\n", {}, "c.toml:1: train.steps: is a table; a value is wanted\n"},
        BadInput{"KeyForTable", "mesh = 3\n", {}, "c.toml:1: mesh = 3: is an integer; a table [mesh] is wanted\n"},
        BadInput{"ArrayOfTables",
                 "[[mesh]]\ntp = 1\n",
                 {},
                 "c.toml:1: mesh = [ { tp = 1 } ]: is an array neither of numbers nor of strings; a table [mesh] is "
                 "wanted\n"},
        BadInput{
            "QuotedDottedKey", "'mesh.tp' = 2\n", {}, "c.toml:1: 'mesh.tp' = 2: unknown key; did you mean mesh.tp?\n"},
        BadInput{"TextForInteger",
                 "[train]\nsteps = '10'\n",
                 {},
                 "c.toml:2: train.steps = '10': is a text; an integer >= 1 is wanted\n"},
        BadInput{"FloatForInteger",
                 "[train]\nsteps = 1e3\n",
                 {},
                 "c.toml:2: train.steps = 1000.0: is a float; an integer >= 1 is wanted\n"},
        BadInput{"BooleanForInteger",
                 "[train]\nsteps = true\n",
                 {},
                 "c.toml:2: train.steps = true: is a boolean; an integer >= 1 is wanted\n"},
        BadInput{"IntegerForBoolean",
                 "[model]\ntie_embeddings = 1\n",
                 {},
                 "c.toml:2: model.tie_embeddings = 1: is an integer; true or false is wanted\n"},
        BadInput{"IntegerForText", "name = 1\n", {}, "c.toml:1: name = 1: is an integer; a text in quotes is wanted\n"},
        BadInput{"DateForText",
                 "name = 2024-01-01\n",
                 {},
                 "c.toml:1: name = 2024-01-01: is a date or time; a text in quotes is wanted\n"},
        BadInput{"BelowRange", "[train]\nsteps = 0\n", {}, "c.toml:2: train.steps = 0: an integer >= 1 is wanted\n"},
        BadInput{
            "OutsideRange", "[mesh]\ntp = 4096\n", {}, "c.toml:2: mesh.tp = 4096: an integer in [1, 1024] is wanted\n"},
        BadInput{
            "Nan", "[optimizer]\nlr = nan\n", {}, "c.toml:2: optimizer.lr = nan: a finite number >= 0 is wanted\n"},
        BadInput{"Infinity",
                 "[optimizer]\nlr = inf\n",
                 {},
                 "c.toml:2: optimizer.lr = inf: a finite number >= 0 is wanted\n"},
        BadInput{"WrongCount",
                 "[optimizer]\nbetas = [0.9]\n",
                 {},
                 "c.toml:2: optimizer.betas = [0.9]: an array of 2 finite numbers, each in [0, 1] is wanted\n"},
        BadInput{"BadElement",
                 "[optimizer]\nbetas = [0.9, nan]\n",
                 {},
                 "c.toml:2: optimizer.betas = [0.9, nan]: an array of 2 finite numbers, each in [0, 1] is wanted\n"},
        BadInput{"MixedArray",
                 "[optimizer]\nbetas = [1, '1']\n",
                 {},
                 "c.toml:2: optimizer.betas = [ 1, '1' ]: is an array neither of numbers nor of strings; an array of 2 "
                 "finite "
                 "numbers, "
                 "each in [0, 1] is wanted\n"},
        BadInput{"UnknownChoice",
                 "[pipeline]\nschedule = 'zb-h1'\n",
                 {},
                 "c.toml:2: pipeline.schedule = 'zb-h1': one of \"gpipe\", \"1f1b\", \"zb_h1\" is wanted; did you mean "
                 "\"zb_h1\"?\n"},
        BadInput{
            "OverrideOutsideRange", "", {"train.steps=-1"}, "--set: train.steps = -1: an integer >= 1 is wanted\n"},
        BadInput{"OverrideUnknown",
                 "",
                 {"train.stesp=5"},
                 "--set: train.stesp = 5: unknown key; did you mean train.steps?\n"},
        BadInput{"OverrideWithoutValue",
                 "",
                 {"train.steps"},
                 "--set: train.steps: is not key.path=value, e.g. --set mesh.tp=2\n"},
        BadInput{"OverrideBrokenArray",
                 "",
                 {"optimizer.betas=[1,2"},
                 "--set: optimizer.betas=[1,2: the value is neither a TOML value nor one bare word; tables are set key "
                 "by key\n"},
        BadInput{
            "OverrideTable",
            "",
            {"mesh={tp=2}"},
            "--set: mesh={tp=2}: the value is neither a TOML value nor one bare word; tables are set key by key\n"},
        BadInput{"OverrideSmugglesSecondKey",
                 "",
                 {"train.steps=1\nname='x'"},
                 "--set: train.steps=1 name='x': the value is neither a TOML value nor one bare word; tables are set "
                 "key by key\n"}),
    [](const auto& test) { return std::string(test.param.claim); });

/// Faults of TOML itself: the wording is the library's, so only place and substance are checked.
struct BrokenToml {
  const char* claim;
  std::string text;
  std::vector<std::string> places;  ///< starts of the lines expected, in order
};

class BrokenConfig : public testing::TestWithParam<BrokenToml> {};

TEST_P(BrokenConfig, IsReportedWithLineAndColumn) {
  ConfigReader reader = reader_of(GetParam().text);
  read_sample(reader);
  reader.finish();
  std::istringstream lines(reader.format_diagnostics());
  std::string line;
  for (const std::string& place : GetParam().places) {
    ASSERT_TRUE(std::getline(lines, line)) << "missing: " << place;
    EXPECT_EQ(line.substr(0, place.size()), place) << line;
  }
  EXPECT_FALSE(std::getline(lines, line)) << "unexpected: " << line;
}

INSTANTIATE_TEST_SUITE_P(
    Table, BrokenConfig,
    testing::Values(BrokenToml{"DuplicateKeyAndLaterFault",
                               "[train]\nsteps = 1\nsteps = 2\n[mesh]\ntp = 0\n",
                               {"c.toml:3:", "c.toml:5: mesh.tp = 0"}},
                    BrokenToml{"IntegerOverflow",
                               "[train]\nsteps = 9223372036854775808\nseed = 1\n",
                               {"c.toml:2:", "c.toml:3: train.seed"}},
                    BrokenToml{
                        "MissingValue", "[train]\nsteps =\n[mesh]\ntpp = 1\n", {"c.toml:2:", "c.toml:4: mesh.tpp"}},
                    BrokenToml{"TwoBrokenLines", "name = zb\n[mesh]\ntp = 1 1\n", {"c.toml:1:", "c.toml:3:"}},
                    BrokenToml{"BrokenHeaderStops", "[train\nsteps = -4\n", {"c.toml:1:"}},
                    BrokenToml{"OpenArrayStops", "[optimizer]\nbetas = [0.9,\n[mesh]\ntp = -1\n", {"c.toml:"}},
                    BrokenToml{"InvalidUtf8", "name = '\xff'\n", {"c.toml:1:"}}),
    [](const auto& test) { return std::string(test.param.claim); });

TEST(ConfigReader, CollectsAllFaultsOfOneRun) {
  ConfigReader reader = reader_of("[train]\nsteps = 'x'\nsed = 1\n[mesh]\ntp = 3\n", {"pipeline.schedule=zbh1"});
  read_sample(reader);
  reader.reject("mesh.tp", "heads = 8 is not divisible by tp = 3; use tp in {1, 2, 4, 8}");
  reader.finish();
  EXPECT_EQ(
      reader.format_diagnostics(),
      "c.toml:2: train.steps = 'x': is a text; an integer >= 1 is wanted\n"
      "c.toml:3: train.sed = 1: unknown key; [train] has steps\n"
      "c.toml:5: mesh.tp = 3: heads = 8 is not divisible by tp = 3; use tp in {1, 2, 4, 8}\n"
      "--set: pipeline.schedule = 'zbh1': one of \"gpipe\", \"1f1b\", \"zb_h1\" is wanted; did you mean \"zb_h1\"?\n");
}

TEST(ConfigReader, RejectNamesTheDefaultAndTheOverride) {
  ConfigReader reader = reader_of("", {"mesh.tp=2"});
  read_sample(reader);
  reader.reject("train.steps", "too many");
  reader.reject("mesh.tp", "too wide");
  EXPECT_EQ(reader.format_diagnostics(),
            "--set: mesh.tp = 2: too wide\nc.toml (default): train.steps = 100: too many\n");
}

TEST(ConfigReader, RejectIsSilentWhereARuleSawADefaultNobodyChose) {
  ConfigReader reader = reader_of("[train]\nsteps = 'x'\n[mesh]\ntp = 1 1\n");
  read_sample(reader);
  const std::size_t before = reader.diagnostics().size();
  reader.reject("optimizer.lr", "does not fit steps", {"train.steps"});
  reader.reject("mesh.tp", "does not fit");
  EXPECT_EQ(reader.diagnostics().size(), before);
  reader.reject("optimizer.lr", "is odd", {"name"});
  EXPECT_EQ(reader.diagnostics().size(), before + 1);
}

TEST(ConfigReader, AskingTwiceReportsOnce) {
  ConfigReader reader = reader_of("[mesh]\ntp = 0\n");
  read_sample(reader);
  read_sample(reader);
  EXPECT_EQ(reader.diagnostics().size(), 1u);
}

TEST(Overrides, TheLastOneWinsAndBareWordsAreTexts) {
  ConfigReader reader =
      reader_of("[train]\nsteps = 5\n", {"train.steps=6", " train.steps = 7", "pipeline.schedule=zb_h1", "name=/a/b c",
                                         "optimizer.betas=[0.5,0.5]", "optimizer.lr=3e-4"});
  const Sample sample = read_sample(reader);
  reader.finish();
  reader.throw_if_errors();
  EXPECT_EQ(sample, (Sample{7, 1, 3e-4, {0.5, 0.5}, "zb_h1", "/a/b c", false}));
}

TEST(ResolvedToml, ReadsBackToTheSameValues) {
  ConfigReader reader =
      reader_of("name = \"q\\\"\\\\ \\n \\u0001 \u00e9\"\n[optimizer]\nlr = 0.1\nbetas = [0.30000000000000004, 1]\n",
                {"train.steps=9223372036854775807"});
  const Sample sample = read_sample(reader);
  reader.settle("mesh.tp", std::int64_t{4});
  reader.throw_if_errors();
  ConfigReader again = reader_of(reader.resolved_toml());
  Sample expected = sample;
  expected.tp = 4;
  EXPECT_EQ(read_sample(again), expected) << reader.resolved_toml();
  again.finish();
  again.throw_if_errors();
  EXPECT_EQ(again.resolved_toml(), reader.resolved_toml());
}

TEST(ResolvedToml, KeepsExtremeNumbersExact) {
  for (const double value : {1.0, -0.0, 1e-3, 1e300, 5e-324, 1.0 / 3.0, 123456789012345680.0}) {
    ConfigReader reader = reader_of("");
    reader.number("x", value);
    ConfigReader again = reader_of(reader.resolved_toml());
    EXPECT_EQ(again.number("x", 7.0), value) << reader.resolved_toml();
    EXPECT_TRUE(again.is_set("x"));
  }
}

TEST(ConfigDocument, UnreadableFileIsADiagnostic) {
  ConfigReader reader(ConfigDocument::read("/nonexistent/c.toml"));
  read_sample(reader);
  reader.finish();
  ASSERT_EQ(reader.diagnostics().size(), 1u);
  EXPECT_NE(reader.format_diagnostics().find("/nonexistent/c.toml"), std::string::npos);
  EXPECT_THROW(reader.throw_if_errors(), ConfigError);
}

}  // namespace
}  // namespace orthant::config
