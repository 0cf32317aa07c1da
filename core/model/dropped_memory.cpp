// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/model/dropped_memory.hpp>

#include <orthant/core/base/error.hpp>

namespace orthant::model {
namespace {

c10::StorageImpl& storage_of(const at::Tensor& tensor) { return *tensor.storage().unsafeGetStorageImpl(); }

}  // namespace

void drop_memory(const at::Tensor& tensor) {
  invariant(tensor.is_contiguous() && tensor.storage_offset() == 0 && tensor.nbytes() == tensor.storage().nbytes(),
            "memory is dropped whole");
  auto& storage = storage_of(tensor);
  storage.set_data_ptr_noswap(c10::DataPtr(nullptr, tensor.device()));
  storage.set_nbytes(0);
}

void refill_memory(const at::Tensor& dropped, const at::Tensor& again) {
  invariant(dropped.storage().nbytes() == 0 && dropped.nbytes() == again.storage().nbytes(),
            "memory that was dropped is refilled with as much");
  auto& storage = storage_of(dropped);
  auto& source = storage_of(again);
  storage.set_nbytes(source.nbytes());
  storage.set_data_ptr_noswap(source.set_data_ptr(c10::DataPtr(nullptr, again.device())));
  source.set_nbytes(0);
}

}  // namespace orthant::model
