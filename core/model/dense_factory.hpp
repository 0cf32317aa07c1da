// SPDX-License-Identifier: Apache-2.0
// The dense layers: one rank holds every matrix whole and no layer communicates. What tp replaces, layer by layer.
#pragma once

#include <orthant/core/model/declare.hpp>
#include <orthant/core/model/layer_factory.hpp>

namespace orthant::model {

class DenseFactory : public LayerFactory {
 public:
  DenseFactory(const ModelConfig& config, Parameters parameters) : config_(config), parameters_(parameters) {}

  std::unique_ptr<Linear> linear(const LinearSpec& spec) override;
  std::unique_ptr<Embedding> embedding(UnitId unit, const std::string& name) override;
  std::unique_ptr<LossHead> loss_head(UnitId unit, const std::string& name) override;
  shard::Placement whole(shard::Shape shape) const override { return shard::replicate(std::move(shape)); }
  std::int64_t heads_here(std::int64_t heads) const override { return heads; }
  int sequence_shards() const override { return 1; }
  int sequence_shard() const override { return 0; }

 private:
  ModelConfig config_;
  Parameters parameters_;
};

}  // namespace orthant::model
