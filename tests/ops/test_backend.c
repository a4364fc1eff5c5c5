/* test_backend.c - the loader of the CUDA backend, without a GPU: names, every way a file can be wrong, and with the stubs of
 * backend_stub.c (built beside this program) where it is looked for and what is kept. The order of the tests matters: a backend
 * that was accepted stays. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <jansson.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/file.h"
#include "lib/scratch.h"
#include "ops/backend.h"

static char bin[PATH_MAX]; /* the folder of this program */

static const char *stub(const char *name) {
    static char path[PATH_MAX + 64];
    snprintf(path, sizeof path, "%s/backend_%s.so", bin, name);
    return path;
}

static void refused(const char *name, ida_dtype dtype, ida_status code, const char *part) {
    const ida_device *dev = (const ida_device *)(const void *)bin;
    const ida_status st = ida_device_open(name, dtype, &dev);
    if (st != code || !strstr(ida_last_error(), part))
        fail_msg("%s: status %d, \"%s\" (wanted %d and \"%s\")", name, st, ida_last_error(), code, part);
    assert_null(dev);
}

static void names_that_are_no_device_are_refused_with_those_that_are(void **state) {
    (void)state;
    refused("tpu", IDA_F32, IDA_E_ARG, "\"tpu\": there are cpu, cuda and cuda:N");
    const char *const others[] = {"", "CPU", "cuda0", "cudac", "cpu:0", " cuda"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) refused(others[i], IDA_F32, IDA_E_ARG, "unknown device");
    const char *const numbers[] = {"cuda:", "cuda:x", "cuda:-1", "cuda:1x", "cuda: 1", "cuda:99999", "cuda:0x1"};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) refused(numbers[i], IDA_F32, IDA_E_ARG, "the number of a GPU");
    const ida_device *dev;
    assert_int_equal(ida_device_open(NULL, IDA_F32, &dev), IDA_E_ARG);
    assert_int_equal(ida_device_open("cpu", IDA_F32, NULL), IDA_E_ARG);
    assert_int_equal(ida_backend_doctor(NULL), IDA_E_ARG);
}

static void element_types_a_device_lacks_are_refused(void **state) {
    (void)state;
    refused("cpu", IDA_BF16, IDA_E_UNSUPPORTED, "f32 only");
    refused("cpu", IDA_F64, IDA_E_UNSUPPORTED, "f32 only");
    refused("cuda", IDA_F64, IDA_E_UNSUPPORTED, "f32 or bf16");
}

static void cpu_is_the_device_of_this_machine(void **state) {
    (void)state;
    const ida_device *dev = NULL;
    assert_int_equal(ida_device_open("cpu", IDA_F32, &dev), IDA_OK);
    assert_non_null(dev);
    assert_ptr_equal(dev, ida_cpu_device());
}

static void a_path_that_names_nothing_says_so(void **state) {
    (void)state;
    setenv("IDA_CUDA_BACKEND", "/no/such/backend.so", 1);
    refused("cuda", IDA_BF16, IDA_E_UNSUPPORTED, "IDA_CUDA_BACKEND names /no/such/backend.so: No such file");
}

static void a_file_that_is_no_shared_object_is_named(void **state) {
    const char *path = in_dir(*state, "text.so");
    put_file(path, "not a shared object, but long enough to hold the header of one: sixty-four bytes and more", 80);
    setenv("IDA_CUDA_BACKEND", path, 1);
    refused("cuda:1", IDA_F32, IDA_E_UNSUPPORTED, "text.so");
    put_file(path, "", 0);
    refused("cuda:1", IDA_F32, IDA_E_UNSUPPORTED, "too short");
    setenv("IDA_CUDA_BACKEND", *state, 1);
    refused("cuda:1", IDA_F32, IDA_E_UNSUPPORTED, *state);
}

static void shared_objects_of_others_and_of_other_versions_are_refused(void **state) {
    (void)state;
    setenv("IDA_CUDA_BACKEND", stub("nosymbol"), 1);
    refused("cuda", IDA_F32, IDA_E_UNSUPPORTED, "it has no ida_cuda_backend");
    const char *const versions[] = {"refuses", "otherabi", "otherops"};
    for (size_t i = 0; i < sizeof versions / sizeof *versions; i++) {
        setenv("IDA_CUDA_BACKEND", stub(versions[i]), 1);
        refused("cuda", IDA_F32, IDA_E_UNSUPPORTED, "of another version");
        assert_non_null(strstr(ida_last_error(), versions[i]));
    }
}

static void doctor_says_why_there_is_no_gpu(void **state) {
    (void)state;
    char *text = NULL;
    setenv("IDA_CUDA_BACKEND", stub("otherabi"), 1);
    assert_int_equal(ida_backend_doctor(&text), IDA_OK);
    json_t *j = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    assert_non_null(j);
    assert_true(json_is_null(json_object_get(j, "backend")));
    assert_non_null(strstr(json_string_value(json_object_get(j, "error")), "of another version"));
    assert_int_equal(json_array_size(json_object_get(j, "devices")), 0);
    assert_int_equal(json_object_size(j), 3);
    json_decref(j);
    ida_string_free(text);
}

/* Runs a copy of this program, dir/bin/prog, which prints the backend it finds (main). */
static void child_finds(const char *dir, const char *part) {
    char command[2 * PATH_MAX], out[4096];
    snprintf(command, sizeof command, "unset IDA_CUDA_BACKEND; %s/bin/prog doctor 2>&1", dir);
    FILE *f = popen(command, "r");
    assert_non_null(f);
    const size_t n = fread(out, 1, sizeof out - 1, f);
    out[n] = '\0';
    pclose(f);
    if (!strstr(out, part)) fail_msg("found %s (wanted %s)", out, part);
}

static void copy(const char *from, const char *to) {
    int64_t n;
    char *bytes = get_file(from, &n);
    put_file(to, bytes, n);
    free(bytes);
    assert_int_equal(chmod(to, 0755), 0);
}

static void the_backend_is_looked_for_beside_the_program_then_in_lib(void **state) {
    (void)state;
    char dir[PATH_MAX + 32], path[PATH_MAX + 64], want[PATH_MAX + 96];
    snprintf(dir, sizeof dir, "%s/backend-XXXXXX", bin); /* not in /tmp, from which a machine may refuse to run programs */
    assert_non_null(mkdtemp(dir));
    const char *const folders[] = {"bin", "lib"};
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, folders[i]);
        assert_int_equal(mkdir(path, 0755), 0);
    }
    snprintf(path, sizeof path, "%s/bin/prog", dir);
    copy("/proc/self/exe", path);
    snprintf(path, sizeof path, "%s/lib/libidattn_cuda.so", dir);
    copy(stub("works"), path);
    child_finds(dir, "lib/libidattn_cuda.so");
    snprintf(path, sizeof path, "%s/bin/libidattn_cuda.so", dir);
    /* what is there and wrong is not passed over */
    put_file(path, "", 0);
    child_finds(dir, "too short");
    copy(stub("nosymbol"), path);
    snprintf(want, sizeof want, "%s is no CUDA backend", path);
    child_finds(dir, want);
    copy(stub("works"), path);
    child_finds(dir, path);
    assert_int_equal(ida_remove_tree(dir), IDA_OK);
}

static void keep_line(void *user, const char *line) { snprintf(user, 32, "%s", line); }

static void a_device_is_opened_once_for_each_number_and_type(void **state) {
    (void)state;
    char line[32] = "";
    const ida_device *a = NULL, *b = NULL;
    ida_set_log(keep_line, line);
    setenv("IDA_CUDA_BACKEND", stub("works"), 1);
    assert_int_equal(ida_device_open("cuda", IDA_BF16, &a), IDA_OK);
    assert_string_equal(line, "opening");
    ida_set_log(NULL, NULL);
    assert_string_equal(a->name, "stub 0 cuda:0");
    assert_int_equal(a->act_type, IDA_TYPE_BF16);
    setenv("IDA_CUDA_BACKEND", stub("otherabi"), 1); /* too late to matter */
    assert_int_equal(ida_device_open("cuda:0", IDA_BF16, &b), IDA_OK);
    assert_ptr_equal(a, b);
    assert_int_equal(ida_device_open("cuda:0", IDA_F32, &b), IDA_OK);
    assert_string_equal(b->name, "stub 1 cuda:0");
    assert_int_equal(ida_device_open("cuda:12", IDA_BF16, &b), IDA_OK);
    assert_string_equal(b->name, "stub 2 cuda:12");
    assert_int_equal(ida_device_open("cuda:00", IDA_BF16, &b), IDA_OK);
    assert_ptr_equal(a, b);
}

static void a_failure_inside_the_backend_comes_out_with_its_text(void **state) {
    (void)state;
    refused("cuda:5", IDA_BF16, IDA_E_ARG, "there is no cuda:5, says 100% of the stub");
    refused("cuda:5", IDA_BF16, IDA_E_ARG, "there is no cuda:5"); /* and was not kept */
}

static void doctor_lists_the_backend_and_its_devices(void **state) {
    (void)state;
    char *text = NULL;
    assert_int_equal(ida_doctor_json(&text), IDA_OK);
    json_t *j = json_loads(text, JSON_REJECT_DUPLICATES, NULL), *gpu = json_object_get(j, "gpu"),
           *devices = json_object_get(gpu, "devices");
    assert_non_null(strstr(json_string_value(json_object_get(gpu, "backend")), "backend_works.so"));
    assert_true(json_is_null(json_object_get(gpu, "error")));
    assert_int_equal(json_array_size(devices), 1);
    assert_int_equal(json_integer_value(json_object_get(json_array_get(devices, 0), "sm")), 90);
    json_decref(j);
    ida_string_free(text);
}

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "doctor") == 0) {
        char *text = NULL;
        if (ida_backend_doctor(&text)) return 1;
        puts(text);
        ida_string_free(text);
        return 0;
    }
    char self[PATH_MAX];
    if (!realpath("/proc/self/exe", self)) return 1;
    snprintf(bin, sizeof bin, "%s", dirname(self));
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_that_are_no_device_are_refused_with_those_that_are),
        cmocka_unit_test(element_types_a_device_lacks_are_refused),
        cmocka_unit_test(cpu_is_the_device_of_this_machine),
        cmocka_unit_test(a_path_that_names_nothing_says_so),
        cmocka_unit_test(a_file_that_is_no_shared_object_is_named),
        cmocka_unit_test(shared_objects_of_others_and_of_other_versions_are_refused),
        cmocka_unit_test(doctor_says_why_there_is_no_gpu),
        cmocka_unit_test(the_backend_is_looked_for_beside_the_program_then_in_lib),
        cmocka_unit_test(a_device_is_opened_once_for_each_number_and_type),
        cmocka_unit_test(a_failure_inside_the_backend_comes_out_with_its_text),
        cmocka_unit_test(doctor_lists_the_backend_and_its_devices),
    };
    return cmocka_run_group_tests_name("ops/backend", tests, scratch_setup, scratch_teardown);
}
