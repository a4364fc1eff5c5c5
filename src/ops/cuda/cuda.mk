# The CUDA rooms: objects of src/ops/cuda, their check on a GPU machine, their speed. Included by the Makefile.
NVCC     ?= $(or $(shell command -v nvcc 2>/dev/null),$(wildcard /usr/local/cuda/bin/nvcc))
CUDA     := $(patsubst %/bin/,%,$(dir $(NVCC)))
# sm_90a for the tuned path; sm_80 and its PTX for every other chip (generic path).
NVARCH   ?= -gencode arch=compute_90a,code=sm_90a -gencode arch=compute_80,code=sm_80 -gencode arch=compute_80,code=compute_80
NVFLAGS  ?=
CUDASRC  := $(wildcard src/ops/cuda/*.cu)
CUDAOBJ  := $(CUDASRC:%.cu=$B/%.o)
CUDALIBS := $(CUDA)/lib64/libcudart_static.a -ldl -lrt -pthread -lstdc++

$B/src/ops/cuda/%.o: src/ops/cuda/%.cu $(wildcard src/ops/cuda/*.h src/ops/cuda/*.cuh) src/ops/ops.h
	@mkdir -p $(@D)
	$(call SAY,NVCC)$(NVCC) -std=c++17 -O3 $(NVARCH) -Iinclude -Isrc -Xcompiler -fPIC -Xcompiler -Wall $(NVFLAGS) -c $< -o $@

$B/tests/cuda/naive.o: tests/cuda/naive.c
	@mkdir -p $(@D)
	$(call SAY,CC)$(CC) $(ALLC) -DIDA_REAL=double -c $< -o $@
$B/tests/cuda/interdomain_check: tests/cuda/interdomain_check.c $B/tests/cuda/naive.o $(CUDAOBJ) $B/libidattn.a
	$(call SAY,LD)$(CC) $(ALLC) -I$(CUDA)/include $(filter %.c %.o,$^) $B/libidattn.a -o $@ $(LIBS) $(CUDALIBS)
$B/bench/cuda/mixer_core_cuda: bench/cuda/mixer_core_cuda.c $(CUDAOBJ) $B/libidattn.a
	@mkdir -p $(@D)
	$(call SAY,LD)$(CC) $(ALLC) -I$(CUDA)/include $(filter %.c %.o,$^) $B/libidattn.a -o $@ $(LIBS) $(CUDALIBS)

.PHONY: cuda-objects test-cuda bench-cuda
ifeq ($(NVCC),)
cuda-objects test-cuda bench-cuda:
	@echo 'no nvcc here: the CUDA kernels are not built (install the CUDA toolkit, or set NVCC=)'
else
cuda-objects: $(CUDAOBJ)
test-cuda: $B/tests/cuda/interdomain_check
	$< tests/data/golden
bench-cuda: $B/bench/cuda/mixer_core_cuda
	$<
endif
