# The CUDA backend: libidattn_cuda.so from src/ops/cuda, its checks on a GPU machine, its speed. Included by the Makefile.
# Built where nvcc is found, else not: the program is the same with and without it.
NVCC     ?= $(or $(shell command -v nvcc 2>/dev/null),$(wildcard /usr/local/cuda/bin/nvcc))
CUDA     := $(patsubst %/bin/,%,$(dir $(realpath $(shell command -v $(NVCC) 2>/dev/null))))
# sm_90a for the tuned path; sm_80 and its PTX for every other chip (generic path).
NVARCH   ?= -gencode arch=compute_90a,code=sm_90a -gencode arch=compute_80,code=sm_80 -gencode arch=compute_80,code=compute_80
NVFLAGS  ?=
NVOPT.release := -DNDEBUG
NVOPT.debug   := -DIDA_DEBUG
NVOPT.asan    := -DIDA_DEBUG
ALLNV    := -std=c++17 -O3 $(NVARCH) -Iinclude -Isrc -Xcompiler -fPIC,-Wall,-fvisibility=hidden \
            $(NVOPT.$(CONFIG)) $(NVFLAGS)
CUDASRC  := $(wildcard src/ops/cuda/*.cu src/ops/cuda/*/*.cu)
CUDACSRC := $(wildcard src/ops/cuda/*.c src/ops/cuda/*/*.c)
# core/mem.c is in the library and in the backend, which shares no symbols with it. Sanitizers stay out of what is loaded late.
CUDAOBJ  := $(CUDASRC:%.cu=$B/%.o) $(CUDACSRC:%.c=$B/%.o) $B/cuda/src/core/mem.o
CUDAC     = $(CC) $(filter-out -fsanitize% -fno-sanitize%,$(ALLC)) -isystem $(CUDA)/include
CUDADIRS := $(wildcard $(CUDA)/lib64 $(CUDA)/lib)
CUDALIBS := $(CUDADIRS:%=-L%) $(CUDADIRS:%=-Wl,-rpath,%) -lcublasLt -lcudart_static -ldl -lrt -pthread \
            -Wl,--as-needed -lstdc++ -lm

ifneq ($(CUDA),)
BACKEND  := $B/libidattn_cuda.so
all: build/libidattn_cuda.so
else
all: no-nvcc
endif

NVSTAMP  := '$(subst ','\'',$(NVCC) $(ALLNV))'
$B/nvflags: FORCE
	@mkdir -p $(@D); echo $(NVSTAMP) | cmp -s - $@ || echo $(NVSTAMP) > $@
$(CUDASRC:%.cu=$B/%.o): $B/nvflags
$(CUDACSRC:%.c=$B/%.o) $B/cuda/src/core/mem.o: $B/flags

$B/src/ops/cuda/%.o: src/ops/cuda/%.cu
	@mkdir -p $(@D)
	$(call SAY,NVCC)$(NVCC) $(ALLNV) -MMD -MP -MF $(@:.o=.d) -MT $@ -c $< -o $@
$B/src/ops/cuda/%.o: src/ops/cuda/%.c
	@mkdir -p $(@D)
	$(call SAY,CC)$(CUDAC) -c $< -o $@
$B/cuda/src/core/mem.o: src/core/mem.c
	@mkdir -p $(@D)
	$(call SAY,CC)$(CUDAC) -c $< -o $@
$B/libidattn_cuda.so: $(CUDAOBJ) src/ops/cuda/backend.map
	$(call SAY,LD)$(CC) -shared -Wl,-soname,$(@F) -Wl,--no-undefined -Wl,--version-script,src/ops/cuda/backend.map \
	    $(filter %.o,$^) -o $@ $(CUDALIBS)
# Beside build/idattn, for people; the program looks beside the file that the link leads to.
ifneq ($(wildcard build/.setup),)
build/libidattn_cuda.so: $B/libidattn_cuda.so
	@ln -sf $(patsubst build/%,%,$<) $@
endif

# Programs that need a GPU. They open the device as the program does.
$B/tests/cuda/ops_check: $(wildcard tests/cuda/ops_*.c) $B/tests/cuda/naive.o $B/libidattn.a
	@mkdir -p $(@D)
	$(call SAY,LD)$(CC) $(ALLC) $(filter %.c %.o,$^) $B/libidattn.a -o $@ $(LIBS)
$B/tests/cuda/model_check: tests/cuda/model_check.c tests/cuda/rounded.c $B/libidattn.a
	@mkdir -p $(@D)
	$(call SAY,LD)$(CC) $(ALLC) $(filter %.c,$^) $B/libidattn.a -o $@ $(LIBS)
# These two call the mixer core itself, below the op table.
MIXEROBJ := $B/src/ops/cuda/arch.o \
            $(patsubst %,$B/src/ops/cuda/interdomain/%.o,interdomain any bwd fwd maps tables wide_bwd wide_fwd wide_scan)
$B/tests/cuda/naive.o: tests/cuda/naive.c
	@mkdir -p $(@D)
	$(call SAY,CC)$(CC) $(ALLC) -DIDA_REAL=double -c $< -o $@
$B/tests/cuda/interdomain_check: tests/cuda/interdomain_check.c $B/tests/cuda/naive.o $(MIXEROBJ) $B/libidattn.a
	$(call SAY,LD)$(CC) $(ALLC) -isystem $(CUDA)/include $(filter %.c %.o,$^) $B/libidattn.a -o $@ $(LIBS) $(CUDALIBS)
$B/bench/cuda/mixer_core_cuda: bench/cuda/mixer_core_cuda.c $(MIXEROBJ) $B/libidattn.a
	@mkdir -p $(@D)
	$(call SAY,LD)$(CC) $(ALLC) -isystem $(CUDA)/include $(filter %.c %.o,$^) $B/libidattn.a -o $@ $(LIBS) $(CUDALIBS)
$B/bench/cuda/ops_cuda: bench/cuda/ops_cuda.c $B/libidattn.a
	@mkdir -p $(@D)
	$(call SAY,LD)$(CC) $(ALLC) -isystem $(CUDA)/include $< $B/libidattn.a -o $@ $(LIBS) $(CUDADIRS:%=-L%) -lcudart_static -lrt

.PHONY: no-nvcc cuda test-cuda bench-cuda bundle
no-nvcc:
	@echo 'no nvcc here: built without the CUDA backend (install the CUDA toolkit, or set NVCC=)'
ifeq ($(CUDA),)
cuda test-cuda bench-cuda bundle: no-nvcc
	@false
else
cuda: build/libidattn_cuda.so
CUDATESTS := $B/tests/cuda/ops_check $B/tests/cuda/model_check $B/tests/cuda/interdomain_check
ifeq ($(wildcard build/.setup),)
test-cuda bench-cuda: build/.setup
	@$(MAKE) --no-print-directory $@
else
test-cuda: $(CUDATESTS) $(BACKEND) $B/idattn $B/tests/cli/stdiff
	@tests/cuda/all.sh $B
bench-cuda: $B/bench/cuda/ops_cuda $B/bench/cuda/mixer_core_cuda $(BACKEND)
	IDA_CUDA_BACKEND=$(BACKEND) $<
	$B/bench/cuda/mixer_core_cuda
endif
# For a GPU machine that has none of our packages: the program, the backend and the checks with static libraries, in their places.
BUNDLE    := build/bundle
BUNDLED   := idattn libidattn_cuda.so tests/cli/stdiff tests/cuda/ops_check tests/cuda/model_check tests/cuda/interdomain_check \
             bench/cuda/ops_cuda bench/cuda/mixer_core_cuda
OPENBLAS_AT = $(shell pkg-config --libs-only-L openblas 2>/dev/null)
STATIC    := -Wl,-Bstatic -l:libopenblas.a -ljansson -lxxhash -lzstd -lz -lpcre2-8 -lutf8proc -Wl,-Bdynamic $(OPENBLAS_AT) \
             -lm -ldl -pthread
bundle: build/.setup
	@$(MAKE) --no-print-directory B=$(BUNDLE) LIBS='$(STATIC)' $(BUNDLED:%=$(BUNDLE)/%)
	$(call SAY,TAR)strip $(BUNDLED:%=$(BUNDLE)/%) && tar -cJf build/bundle.tar.xz $(BUNDLED:%=$(BUNDLE)/%) \
	    tests/cuda/*.sh tests/cli/lib.sh tests/cli/grammar.awk tests/data/golden bench/cuda/*.py tools/study.sh
# `make test` compiles what only a GPU machine can run.
ifeq ($(CONFIG),release)
test-programs: $(BACKEND) $(CUDATESTS) $B/bench/cuda/ops_cuda $B/bench/cuda/mixer_core_cuda
endif
endif
