// SPDX-License-Identifier: Apache-2.0
#include <orthant/launch/stage_split.hpp>

#include <algorithm>
#include <limits>
#include <numeric>

namespace orthant::launch {

std::vector<double> estimated_layer_costs(const model::ModelConfig& model, std::int64_t seq_len) {
  const auto query = model.heads * model.head_dim, key_value = model.kv_heads * model.head_dim;
  const auto weights = model.hidden * (2 * query + 2 * key_value + 3 * model.ffn);
  const auto attention = seq_len * query * 2;  // scores and their product with the values, as computed: not halved
  std::vector<double> costs(static_cast<std::size_t>(model.layers) + 2, static_cast<double>(weights + attention));
  costs.front() = static_cast<double>(model.hidden);  // rows that are copied
  costs.back() = static_cast<double>(model.hidden * model.vocab);
  return costs;
}

std::vector<int> split_blocks(const std::vector<double>& costs, int stages) {
  const int blocks = static_cast<int>(costs.size()) - 2;
  std::vector<double> sum_before(costs.size());  // of the blocks before block b, counted from 0
  std::partial_sum(costs.begin() + 1, costs.end() - 1, sum_before.begin() + 1);
  const auto cost = [&](int stage, int from, int to) {
    return sum_before[static_cast<std::size_t>(to)] - sum_before[static_cast<std::size_t>(from)] +
           (stage == 0 ? costs.front() : 0) + (stage == stages - 1 ? costs.back() : 0);
  };
  // worst[s][b]: the dearest of stages s.. that hold the blocks from b on, at best; every stage holds one at least.
  const auto none = std::numeric_limits<double>::infinity();
  std::vector worst(static_cast<std::size_t>(stages) + 1,
                    std::vector<double>(static_cast<std::size_t>(blocks) + 1, none));
  std::vector choice(worst.size(), std::vector<int>(worst.front().size()));
  worst[static_cast<std::size_t>(stages)][static_cast<std::size_t>(blocks)] = 0;
  for (int s = stages - 1; s >= 0; --s) {
    for (int b = 0; b < blocks; ++b) {
      auto& best = worst[static_cast<std::size_t>(s)][static_cast<std::size_t>(b)];
      for (int to = blocks; to > b; --to) {
        const double dearest =
            std::max(cost(s, b, to), worst[static_cast<std::size_t>(s) + 1][static_cast<std::size_t>(to)]);
        if (dearest >= best) continue;
        best = dearest;
        choice[static_cast<std::size_t>(s)][static_cast<std::size_t>(b)] = to;
      }
    }
  }
  std::vector<int> result;
  for (int s = 0, b = 0; s < stages; ++s) {
    const int to = choice[static_cast<std::size_t>(s)][static_cast<std::size_t>(b)];
    result.push_back(to - b);
    b = to;
  }
  return result;
}

std::vector<step::StageSpan> spans_of(const std::vector<int>& blocks_per_stage) {
  std::vector<step::StageSpan> spans;
  int next = 1;
  for (std::size_t s = 0; s < blocks_per_stage.size(); ++s) {
    const bool is_first = s == 0, is_last = s + 1 == blocks_per_stage.size();
    spans.push_back({.stage = StageId{static_cast<int>(s)},
                     .first = LayerId{is_first ? 0 : next},
                     .last = LayerId{next + blocks_per_stage[s] - 1 + (is_last ? 1 : 0)}});
    next += blocks_per_stage[s];
  }
  return spans;
}

}  // namespace orthant::launch
