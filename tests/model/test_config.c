/* test_config.c - config.json is untrusted: what must be accepted, what must be refused, and that each refusal names its
 * reason. */
#include "model_test.h"

#include "model/config.h"

#define SHAPE "\"vocab_size\":100,\"hidden_size\":64,\"num_hidden_layers\":2,\"num_attention_heads\":4"

static ida_status parse(const char *text, ida_config *c) { return ida_config_parse(text, strlen(text), "config.json", c); }

static void absent_keys_take_the_documented_defaults(void **s) {
    (void)s;
    ida_config c;
    OK(parse("{" SHAPE "}", &c));
    assert_int_equal(c.layer_mixer[0], IDA_MIXER_INTERDOMAIN);
    assert_int_equal(c.n_kv_heads, 4);
    assert_int_equal(c.ffn_hidden, 256);
    assert_int_equal(c.state_size, 64);
    assert_int_equal(c.basis, IDA_BASIS_S4D_LIN);
    assert_int_equal(c.bos_id, -1);
    assert_true(c.rope && !c.gate && !c.output_norm && !c.tie_embeddings);
    assert_true(c.norm_eps == 1e-5 && c.rope_theta == 10000 && c.init_std == 0.02 && c.l2_eps == 1e-6);
}

static void a_llama_config_is_a_softmax_model_with_hf_defaults(void **s) {
    (void)s;
    ida_config c;
    OK(parse("{\"model_type\":\"llama\"," SHAPE
             ",\"num_key_value_heads\":2,\"eos_token_id\":[7,8],\"bos_token_id\":null,\"rope_scaling\":null,"
             "\"head_dim\":16,\"hidden_act\":\"silu\",\"unknown\":{\"a\":[1]}}",
             &c));
    assert_int_equal(c.layer_mixer[1], IDA_MIXER_SOFTMAX);
    assert_true(c.n_kv_heads == 2 && c.eos_id == 7 && c.bos_id == -1 && c.ffn_hidden == 11008 && c.norm_eps == 1e-6 &&
                c.max_position == 2048);
    OK(parse("{\"model_type\":\"llama\"," SHAPE ",\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":500000},"
             "\"partial_rotary_factor\":1.0}",
             &c));
    assert_true(c.rope_theta == 500000);
}

/* Keys of other models with values that change nothing, as real files have them. */
static void harmless_values_of_foreign_keys_are_taken(void **s) {
    (void)s;
    static const char *const rows[] = {
        /* what each key is in a Llama, Qwen2, Mistral, OLMo or Granite file that needs nothing of it */
        "\"attention_bias\":false,\"mlp_bias\":null,\"use_bias\":0,\"qkv_bias\":false,\"use_qkv_bias\":false",
        "\"hidden_act\":null,\"hidden_activation\":\"silu\",\"position_embedding_type\":\"rope\",\"is_causal\":true",
        "\"use_qk_norm\":false,\"qk_norm\":null,\"qk_layernorm\":false,\"clip_qkv\":null,\"kv_lora_rank\":null",
        "\"attn_logit_softcapping\":null,\"final_logit_softcapping\":0.0,\"logit_softcapping\":null,\"logits_soft_cap\":0",
        "\"logits_scaling\":1,\"logit_scale\":1.0,\"lm_head_multiplier\":1.0,\"embedding_multiplier\":1.0,\"scale_emb\":1",
        "\"residual_multiplier\":1.0,\"attention_multiplier\":0.25,\"query_pre_attn_scalar\":16,\"use_parallel_residual\":false",
        "\"num_experts\":0,\"num_local_experts\":0,\"n_routed_experts\":null,\"moe_num_experts\":0,\"num_experts_per_tok\":2",
        "\"use_bidirectional_attention\":false,\"is_encoder_decoder\":false,\"alibi\":false,\"attn_temperature_tuning\":false",
        "\"no_rope_layers\":[1,true],\"no_rope_layer_interval\":null,\"rope_interleaved\":false,\"rope_interleave\":null",
        "\"no_rope_layers\":[1,1],\"no_rope_layer_interval\":4", /* where there is a list, it tells */
        "\"rms_norm_eps\":1e-5,\"layer_norm_eps\":1e-12,\"layer_norm_epsilon\":1e-6,\"norm_eps\":1e-5", /* left over, unread */
        "\"position_embedding_type\":\"RoPE\"",
        "\"rope_theta\":5e5,\"rope_local_base_freq\":500000,\"rotary_pct\":1.0,\"quantization_config\":null",
        "\"rope_theta\":5e5,\"rope_scaling\":{\"type\":\"default\",\"rope_theta\":5e5,\"partial_rotary_factor\":1}",
        "\"rope_scaling\":{\"type\":\"linear\",\"factor\":1.0}",
        "\"rope_parameters\":{\"rope_theta\":5e5}",
        /* a window that no layer has, or that no sequence outgrows */
        "\"sliding_window\":null,\"attention_chunk_size\":null,\"layer_types\":null",
        "\"sliding_window\":64,\"use_sliding_window\":false,\"max_window_layers\":1",
        "\"sliding_window\":64,\"use_sliding_window\":true,\"max_window_layers\":2",
        "\"sliding_window\":4096,\"max_position_embeddings\":4096",
        "\"sliding_window\":4096,\"max_position_embeddings\":4096,\"layer_types\":[\"sliding_attention\",\"full_attention\"]",
        "\"sliding_window\":64,\"max_window_layers\":0,\"layer_types\":[\"full_attention\",\"full_attention\"]",
        "\"sliding_window\":64,\"use_sliding_window\":false,\"layer_types\":[\"full_attention\",\"sliding_attention\"]",
        "\"attention_chunk_size\":8192,\"layer_types\":[\"chunked_attention\",\"full_attention\"]",
        "\"attention_chunk_size\":64,\"layer_types\":[\"full_attention\",\"full_attention\"]",
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char text[512];
        ida_config c;
        snprintf(text, sizeof text, "{\"model_type\":\"llama\"," SHAPE ",%s}", rows[i]);
        if (parse(text, &c) != IDA_OK) fail_msg("row %zu: %s: %s", i, rows[i], ida_last_error());
    }
}

/* The same keys with a value that asks for another function: refused, by the name of the key. */
static void foreign_keys_that_change_the_result_are_refused_by_name(void **s) {
    (void)s;
    static const struct { const char *keys, *says; } rows[] = {
        {"\"hidden_act\":\"gelu\"", "hidden_act is \"gelu\"; only \"silu\" can be taken"},
        {"\"hidden_act\":3", "hidden_act is 3"},
        {"\"hidden_activation\":\"gelu_pytorch_tanh\"", "hidden_activation"},
        {"\"attention_bias\":\"yes\"", "attention_bias is \"yes\"; only null, false or 0 can be taken"},
        {"\"mlp_bias\":1", "mlp_bias is 1"},
        {"\"use_bias\":true", "use_bias"},
        {"\"qkv_bias\":true", "qkv_bias"},
        {"\"use_qkv_bias\":true", "use_qkv_bias"},
        {"\"head_dim\":\"wide\"", "head_dim is \"wide\"; only 16 can be taken"},
        {"\"query_pre_attn_scalar\":256", "query_pre_attn_scalar is 256; only 16 can be taken"},
        {"\"attention_multiplier\":0.015625", "attention_multiplier is 0.015625; only 0.25 can be taken"},
        {"\"attention_multiplier\":1.0", "attention_multiplier"}, /* Granite's default: scores as they are */
        {"\"attn_temperature_tuning\":4", "attn_temperature_tuning"},
        {"\"rope_parameters\":{\"llama_4_scaling_beta\":0.1}", "rope_parameters.llama_4_scaling_beta is 0.1"},
        {"\"use_qk_norm\":true", "use_qk_norm"},
        {"\"qk_norm\":true", "qk_norm is true"},
        {"\"qk_layernorm\":true", "qk_layernorm"},
        {"\"clip_qkv\":8.0", "clip_qkv is 8.0"},
        {"\"kv_lora_rank\":512", "kv_lora_rank"},
        {"\"attn_logit_softcapping\":50.0", "attn_logit_softcapping"},
        {"\"final_logit_softcapping\":30.0", "final_logit_softcapping"},
        {"\"logit_softcapping\":30", "logit_softcapping"},
        {"\"logits_soft_cap\":30", "logits_soft_cap"},
        {"\"logits_scaling\":8", "logits_scaling is 8; only 1 can be taken"},
        {"\"logit_scale\":0.0625", "logit_scale"},
        {"\"lm_head_multiplier\":0.5", "lm_head_multiplier"},
        {"\"embedding_multiplier\":12", "embedding_multiplier"},
        {"\"embedding_multiplier\":true", "embedding_multiplier is true"},
        {"\"scale_emb\":12", "scale_emb"},
        {"\"residual_multiplier\":0.22", "residual_multiplier is 0.22"},
        {"\"use_parallel_residual\":true", "use_parallel_residual"},
        {"\"num_experts\":64", "num_experts"},
        {"\"num_local_experts\":8", "num_local_experts is 8; only null, false or 0 can be taken: there are no mixtures"},
        {"\"n_routed_experts\":64", "n_routed_experts"},
        {"\"moe_num_experts\":16", "moe_num_experts"},
        {"\"is_causal\":false", "is_causal is false; only true can be taken"},
        {"\"use_bidirectional_attention\":true", "use_bidirectional_attention"},
        {"\"is_encoder_decoder\":true", "is_encoder_decoder"},
        {"\"position_embedding_type\":\"nope\"", "position_embedding_type is \"nope\"; only \"rope\""},
        {"\"alibi\":true", "alibi"},
        {"\"no_rope_layers\":[1,0]", "no_rope_layers is [1,0]; only a list of 1 can be taken"},
        {"\"no_rope_layers\":4", "no_rope_layers"},
        {"\"no_rope_layers\":[]", "no_rope_layers is []; only a list of 1 can be taken"},
        {"\"no_rope_layers\":null,\"no_rope_layer_interval\":4", "no_rope_layer_interval is 4; only null, false or 0"},
        {"\"no_rope_layer_interval\":4", "no_rope_layer_interval"},
        {"\"rope_interleaved\":true", "rope_interleaved"},
        {"\"rope_interleave\":true", "rope_interleave "},
        {"\"rope_theta\":1e6,\"rope_local_base_freq\":1e4", "rope_local_base_freq is 10000.0; only 1000000 can be taken"},
        {"\"rope_scaling\":{\"type\":\"default\",\"rope_theta\":5e5}", "rope_scaling.rope_theta is 500000.0; only 10000"},
        {"\"rope_scaling\":{\"type\":\"default\",\"partial_rotary_factor\":0.5}", "rope_scaling.partial_rotary_factor"},
        {"\"rotary_pct\":0.25", "rotary_pct"},
        {"\"quantization_config\":{\"quant_method\":\"awq\",\"bits\":4,\"group_size\":128,\"zero_point\":true}",
         "quantization_config is {\"quant_method\":\"awq\",\"bits\":4,\"group_size\":128,\"zero_point\"...; only"},
        /* RoPE's type */
        {"\"rope_scaling\":{\"factor\":8}", "rope_scaling has no rope_type"},
        {"\"rope_scaling\":3", "rope_scaling is not an object"},
        {"\"rope_parameters\":[]", "rope_parameters is not an object"},
        {"\"rope_scaling\":{\"rope_type\":3}", "rope_scaling.rope_type (or type) is not a string"},
        {"\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"default\",\"rope_theta\":1e6},\"sliding_attention\":"
         "{\"rope_type\":\"default\",\"rope_theta\":1e4}}", "rope_parameters.full_attention is an object"},
        {"\"rope_scaling\":{\"rope_type\":\"default\",\"sliding_attention\":{}}", "rope_scaling.sliding_attention is an object"},
        /* windows */
        {"\"sliding_window\":64", "sliding_window is 64; only null or max_position_embeddings (2048) and more can be taken: "
                                  "softmax layers see the whole past; set it to null if the model does without"},
        {"\"sliding_window\":2047,\"use_sliding_window\":null", "sliding_window is 2047"},
        {"\"sliding_window\":\"64\"", "sliding_window is \"64\""},
        {"\"sliding_window\":-1", "sliding_window is -1"},
        {"\"sliding_window\":64,\"use_sliding_window\":true,\"max_window_layers\":1", "sliding_window is 64"},
        {"\"sliding_window\":64,\"max_window_layers\":2,\"layer_types\":[\"full_attention\",\"sliding_attention\"]",
         "sliding_window is 64"},
        {"\"attention_chunk_size\":64", "attention_chunk_size"},
        {"\"attention_chunk_size\":64,\"use_sliding_window\":false,\"max_window_layers\":2", "attention_chunk_size"},
        {"\"layer_types\":[\"full_attention\",\"sliding_attention\"]",
         "layer_types is [\"full_attention\",\"sliding_attention\"]; only num_hidden_layers (2) times \"full_attention\""},
        {"\"sliding_window\":64,\"layer_types\":[\"full_attention\",\"chunked_attention\"]", "layer_types"},
        {"\"layer_types\":[\"full_attention\",\"linear_attention\"]", "layer_types"},
        {"\"layer_types\":[\"full_attention\"]", "layer_types"},
        {"\"layer_types\":[\"full_attention\",1]", "layer_types"},
        {"\"layer_types\":\"full_attention\"", "layer_types"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char text[512];
        ida_config c;
        snprintf(text, sizeof text, "{\"model_type\":\"llama\"," SHAPE ",%s}", rows[i].keys);
        ida_status st = parse(text, &c);
        if (st != IDA_E_UNSUPPORTED) fail_msg("row %zu: %s: got %s", i, rows[i].keys, ida_status_name(st));
        if (!strstr(ida_last_error(), rows[i].says) || strncmp(ida_last_error(), "config.json: ", 13) != 0)
            fail_msg("row %zu: message lacks \"%s\": %s", i, rows[i].says, ida_last_error());
    }
}

/* Every refusal: the text, the code, and a part of the message that tells the reader what to mend. */
static void bad_configs_are_refused_with_their_reason(void **s) {
    (void)s;
    static const struct { const char *text; ida_status code; const char *says;
    } rows[] = {
        {"", IDA_E_FORMAT, "JSON"},
        {"[]", IDA_E_FORMAT, "object"},
        {"{" SHAPE, IDA_E_FORMAT, "JSON"},
        {"{" SHAPE ",\"hidden_size\":32}", IDA_E_FORMAT, "JSON"},
        {"{\"hidden_size\":64}", IDA_E_FORMAT, "vocab_size"},
        {"{\"vocab_size\":0,\"hidden_size\":64,\"num_hidden_layers\":2,\"num_attention_heads\":4}", IDA_E_FORMAT, "vocab_size"},
        {"{\"vocab_size\":16777217,\"hidden_size\":64,\"num_hidden_layers\":2,\"num_attention_heads\":4}", IDA_E_FORMAT,
         "vocab_size"},
        {"{\"vocab_size\":\"100\",\"hidden_size\":64,\"num_hidden_layers\":2,\"num_attention_heads\":4}", IDA_E_FORMAT,
         "vocab_size"},
        {"{\"vocab_size\":100,\"hidden_size\":9223372036854775807,\"num_hidden_layers\":2,\"num_attention_heads\":4}",
         IDA_E_FORMAT, "hidden_size"},
        {"{\"vocab_size\":100,\"hidden_size\":64,\"num_hidden_layers\":257,\"num_attention_heads\":4}", IDA_E_FORMAT,
         "num_hidden_layers"},
        {"{\"vocab_size\":100,\"hidden_size\":64,\"num_hidden_layers\":2.5,\"num_attention_heads\":4}", IDA_E_FORMAT,
         "num_hidden_layers"},
        {"{\"vocab_size\":100,\"hidden_size\":64,\"num_hidden_layers\":2,\"num_attention_heads\":0}", IDA_E_FORMAT,
         "num_attention_heads"},
        {"{\"vocab_size\":100,\"hidden_size\":65,\"num_hidden_layers\":2,\"num_attention_heads\":4}", IDA_E_FORMAT,
         "not a multiple"},
        {"{\"vocab_size\":100,\"hidden_size\":60,\"num_hidden_layers\":2,\"num_attention_heads\":4}", IDA_E_FORMAT, "even"},
        {"{" SHAPE ",\"num_key_value_heads\":3}", IDA_E_FORMAT, "num_key_value_heads"},
        {"{" SHAPE ",\"num_key_value_heads\":8}", IDA_E_FORMAT, "num_key_value_heads"},
        {"{" SHAPE ",\"num_key_value_heads\":2,\"mixer\":{\"kind\":\"s4d\"}}", IDA_E_FORMAT, "no queries"},
        {"{" SHAPE ",\"num_key_value_heads\":2,\"layer_mixers\":[\"softmax\",\"dual-linear\"]}", IDA_E_FORMAT, "layer 1"},
        {"{" SHAPE ",\"head_dim\":32}", IDA_E_UNSUPPORTED, "head_dim"},
        {"{" SHAPE ",\"model_type\":\"mamba\"}", IDA_E_UNSUPPORTED, "mamba"},
        {"{" SHAPE ",\"model_type\":7}", IDA_E_UNSUPPORTED, "model_type"},
        {"{" SHAPE ",\"hidden_act\":\"gelu\"}", IDA_E_UNSUPPORTED, "gelu"},
        {"{" SHAPE ",\"attention_bias\":true}", IDA_E_UNSUPPORTED, "attention_bias"},
        {"{" SHAPE ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":2}}", IDA_E_UNSUPPORTED, "linear"},
        {"{" SHAPE ",\"rope_scaling\":{\"factor\":2}}", IDA_E_UNSUPPORTED, "rope_scaling"},
        {"{" SHAPE ",\"rope_scaling\":3}", IDA_E_UNSUPPORTED, "rope_scaling"},
        {"{" SHAPE ",\"partial_rotary_factor\":0.5}", IDA_E_UNSUPPORTED, "partial_rotary_factor"},
        {"{" SHAPE ",\"rope_parameters\":{\"rope_type\":\"default\",\"partial_rotary_factor\":0.25}}", IDA_E_UNSUPPORTED,
         "whole heads"},
        {"{" SHAPE ",\"rope_parameters\":{\"rope_type\":\"llama3\",\"rope_theta\":5e5}}", IDA_E_UNSUPPORTED, "llama3"},
        {"{" SHAPE ",\"rope_theta\":1e4,\"rope_parameters\":{\"rope_theta\":5e5}}", IDA_E_FORMAT, "rope_theta"},
        {"{" SHAPE ",\"quantization_config\":{}}", IDA_E_UNSUPPORTED, "quantization_config"},
        {"{" SHAPE ",\"rms_norm_eps\":0}", IDA_E_FORMAT, "rms_norm_eps"},
        {"{" SHAPE ",\"rope_theta\":-1}", IDA_E_FORMAT, "rope_theta"},
        {"{" SHAPE ",\"tie_word_embeddings\":1}", IDA_E_FORMAT, "tie_word_embeddings"},
        {"{" SHAPE ",\"eos_token_id\":100}", IDA_E_FORMAT, "eos_token_id"},
        {"{" SHAPE ",\"eos_token_id\":[]}", IDA_E_FORMAT, "eos_token_id"},
        {"{" SHAPE ",\"eos_token_id\":[-5]}", IDA_E_FORMAT, "eos_token_id"},
        {"{" SHAPE ",\"mixer\":[]}", IDA_E_FORMAT, "mixer"},
        {"{" SHAPE ",\"mixer\":{\"kind\":\"rwkv\"}}", IDA_E_FORMAT, "rwkv"},
        {"{" SHAPE ",\"mixer\":{\"kind\":3}}", IDA_E_FORMAT, "kind"},
        {"{" SHAPE ",\"mixer\":{\"state_size\":4097}}", IDA_E_FORMAT, "state_size"},
        {"{" SHAPE ",\"mixer\":{\"basis\":\"fourier\"}}", IDA_E_FORMAT, "s4d-legs"},
        {"{" SHAPE ",\"mixer\":{\"conv_width\":3}}", IDA_E_UNSUPPORTED, "conv_width"},
        {"{" SHAPE ",\"layer_mixers\":[\"softmax\"]}", IDA_E_FORMAT, "layer_mixers"},
        {"{" SHAPE ",\"layer_mixers\":[\"softmax\",5]}", IDA_E_FORMAT, "layer_mixers[1]"},
        {"{" SHAPE ",\"layer_mixers\":[\"softmax\",\"x\"]}", IDA_E_FORMAT, "layer_mixers[1]"},
        /* 256 layers x 65536 groups x 4096^2 modes: each number legal, the product not. */
        {"{\"vocab_size\":100,\"hidden_size\":65536,\"num_hidden_layers\":256,\"num_attention_heads\":32768,\"mixer\":{\"state_"
         "size\":4096}}",
         IDA_E_FORMAT, "parameters"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        ida_config c;
        memset(&c, 0x5a, sizeof c);
        ida_config before = c;
        ida_status st = parse(rows[i].text, &c);
        if (st != rows[i].code) fail_msg("row %zu: %s: got %s: %s", i, rows[i].text, ida_status_name(st), ida_last_error());
        if (!strstr(ida_last_error(), rows[i].says))
            fail_msg("row %zu: message lacks \"%s\": %s", i, rows[i].says, ida_last_error());
        if (!strstr(ida_last_error(), "config.json"))
            fail_msg("row %zu: message does not name the file: %s", i, ida_last_error());
        if (memcmp(&c, &before, sizeof c) != 0) fail_msg("row %zu: output changed although parsing failed", i);
    }
}

static void text_round_trips_for_every_mixer_and_option(void **s) {
    (void)s;
    for (int i = 0; i < 200; i++) {
        ida_config c, back;
        OK(ida_config_preset("tiny", (ida_mixer_kind)(i % N_KINDS), &c));
        c.basis = (ida_basis)(i % 3);
        c.discretization = (ida_discretization)(i / 3 % 4);
        c.readout = (ida_readout)(i % 2);
        c.c_init = (ida_c_init)(i / 2 % 3);
        c.rope = i % 5 != 0;
        c.gate = i % 7 == 0;
        c.output_norm = i % 4 == 0;
        c.tie_embeddings = i % 6 == 0;
        c.rope_theta = 1 + 1e6 * ida_uniform(1, IDA_STREAM_TEST, (uint64_t)i);
        c.norm_eps = i % 2 ? 1e-5 : 1e-9 + 1e-6 * ida_uniform(2, IDA_STREAM_TEST, (uint64_t)i);
        c.dt_min = 1e-4 + 1e-3 * ida_uniform(3, IDA_STREAM_TEST, (uint64_t)i);
        c.dt_max = c.dt_min * (i % 5 + 1);
        c.eos_id = i % 3 ? i : -1;
        if (i % 11 == 0) c.layer_mixer[1] = IDA_MIXER_SOFTMAX;
        for (int64_t l = c.n_layers; l < IDA_MAX_LAYERS; l++)
            c.layer_mixer[l] = c.layer_mixer[0]; /* beyond the layers: as the reader fills it */
        char *text, *again;
        OK(ida_config_json(&c, &text));
        OK(ida_config_parse(text, strlen(text), "text", &back));
        OK(ida_config_json(&back, &again));
        assert_string_equal(text, again);
        assert_true(back.rope_theta == c.rope_theta && back.norm_eps == c.norm_eps && back.eos_id == c.eos_id);
        assert_true(back.dt_min == c.dt_min && back.dt_max == c.dt_max);
        assert_memory_equal(back.layer_mixer, c.layer_mixer, sizeof c.layer_mixer);
        assert_true(back.basis == c.basis && back.discretization == c.discretization && back.readout == c.readout &&
                    back.c_init == c.c_init);
        assert_true(back.rope == c.rope && back.gate == c.gate && back.output_norm == c.output_norm &&
                    back.tie_embeddings == c.tie_embeddings);
        ida_string_free(text);
        ida_string_free(again);
    }
}

static void a_plain_softmax_model_is_written_as_an_hf_llama(void **s) {
    (void)s;
    ida_config c;
    char *text;
    OK(ida_config_preset("tiny", IDA_MIXER_SOFTMAX, &c));
    OK(ida_config_json(&c, &text));
    assert_non_null(strstr(text, "\"LlamaForCausalLM\""));
    ida_string_free(text);
    c.gate = true; /* no longer Llama's maths */
    OK(ida_config_json(&c, &text));
    assert_null(strstr(text, "Llama"));
    assert_non_null(strstr(text, "\"model_type\": \"idattn\""));
    ida_string_free(text);
}

static void set_changes_one_field_or_says_why_not(void **s) {
    (void)s;
    ida_config c;
    OK(ida_config_preset("tiny", IDA_MIXER_INTERDOMAIN, &c));
    OK(ida_config_set(&c, "hidden_size", "128"));
    OK(ida_config_set(&c, "rope_theta", "5e5"));
    OK(ida_config_set(&c, "mixer.readout", "bilinear"));
    OK(ida_config_set(&c, "mixer.gate", "true"));
    OK(ida_config_set(&c, "eos_token_id", "-1"));
    OK(ida_config_set(&c, "layer_mixers", "softmax,s4d"));
    assert_true(c.d_model == 128 && c.rope_theta == 5e5 && c.readout == IDA_READOUT_BILINEAR && c.gate && c.eos_id == -1);
    assert_true(c.layer_mixer[0] == IDA_MIXER_SOFTMAX && c.layer_mixer[1] == IDA_MIXER_S4D);
    OK(ida_config_set(&c, "mixer.kind", "s4d"));
    assert_int_equal(c.layer_mixer[0], IDA_MIXER_S4D);
    static const char *const bad[][2] = {{"hidden_size", "0"},
                                         {"hidden_size", "12x"},
                                         {"hidden_size", ""},
                                         {"hidden_size", "1e3"},
                                         {"hidden_size", "99999999999999999999"},
                                         {"rope_theta", "nan"},
                                         {"rope_theta", "-1"},
                                         {"mixer.readout", "real"},
                                         {"mixer.gate", "yes"},
                                         {"layer_mixers", "softmax"},
                                         {"layer_mixers", "softmax,"},
                                         {"layer_mixers", ""},
                                         {"layer_mixers", "softmax,s4d,s4d"},
                                         {"mixer.kind", "S4D"},
                                         {"nonsense", "1"},
                                         {"layer_mixers", "softmaxsoftmaxsoftmaxsoftmaxsoftmaxsoftmax,s4d"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        ida_config before = c;
        if (ida_config_set(&c, bad[i][0], bad[i][1]) != IDA_E_ARG) fail_msg("%s=%s was taken", bad[i][0], bad[i][1]);
        assert_memory_equal(&before, &c, sizeof c);
    }
    assert_int_equal(ida_config_set(&c, "nonsense", "1"), IDA_E_ARG);
    assert_non_null(strstr(ida_last_error(), "mixer.c_init"));
}

static void unknown_names_list_the_known_ones(void **s) {
    (void)s;
    ida_config c;
    ida_mixer_kind k;
    assert_int_equal(ida_config_preset("7b", IDA_MIXER_S4D, &c), IDA_E_ARG);
    assert_non_null(strstr(ida_last_error(), "1.3b"));
    assert_int_equal(ida_config_preset("tiny", (ida_mixer_kind)9, &c), IDA_E_ARG);
    assert_int_equal(ida_mixer_parse("kernel", &k), IDA_E_ARG);
    assert_non_null(strstr(ida_last_error(), "single-query"));
    for (int i = 0; i < N_KINDS; i++) {
        OK(ida_mixer_parse(ida_mixer_name((ida_mixer_kind)i), &k));
        assert_int_equal(k, i);
    }
    assert_string_equal(ida_mixer_name((ida_mixer_kind)77), "unknown");
}

static void a_broken_struct_is_refused_before_any_arithmetic(void **s) {
    (void)s;
    ida_config c, good;
    ida_model_info info;
    char *text;
    OK(ida_config_preset("tiny", IDA_MIXER_INTERDOMAIN, &good));
    for (int i = 0; i < 8; i++) {
        c = good;
        if (i == 0) c.n_heads = 0;
        if (i == 1) c.n_layers = INT64_MAX;
        if (i == 2) c.d_model = -64;
        if (i == 3) c.norm_eps = NAN;
        if (i == 4) c.layer_mixer[1] = 5;
        if (i == 5) c.basis = (ida_basis)3;
        if (i == 6) c.vocab_size = INT64_MIN;
        if (i == 7) c.n_kv_heads = 0;
        assert_int_equal(ida_config_check(&c), IDA_E_ARG);
        assert_int_equal(ida_config_info(&c, &info), IDA_E_ARG);
        assert_int_equal(ida_config_json(&c, &text), IDA_E_ARG);
    }
    assert_int_equal(ida_config_load("/dev/null/config.json", &c), IDA_E_IO);
}

static void layers_have_options_of_their_own(void **state) {
    (void)state;
    ida_config c, back;
    char *text, *again;
    ida_model_info plain, own;
    ida_difference d;
    OK(ida_config_preset("tiny", IDA_MIXER_INTERDOMAIN, &c));
    OK(ida_config_info(&c, &plain));
    OK(ida_config_set(&c, "layers.1.state_size", "8"));
    OK(ida_config_set(&c, "layers.1.gate", "true"));
    OK(ida_config_info(&c, &own));
    assert_true(own.state_bytes < plain.state_bytes && own.parameters != plain.parameters && own.fixed_state);
    OK(ida_config_json(&c, &text));
    assert_non_null(strstr(text, "\"layers\""));
    OK(ida_config_parse(text, strlen(text), "config.json", &back));
    OK(ida_config_json(&back, &again));
    assert_string_equal(text, again);
    assert_memory_equal(c.layer_own, back.layer_own, sizeof c.layer_own);
    assert_false(ida_config_differ(&c, &back, &d));
    OK(ida_config_set(&back, "layers.1.state_size", "9"));
    assert_true(ida_config_differ(&c, &back, &d));
    assert_string_equal(d.key, "layers.1.state_size");
    assert_true(strcmp(d.a, "8") == 0 && strcmp(d.b, "9") == 0);
    OK(ida_config_set(&back, "layers.1.state_size", "8"));
    OK(ida_config_set(&back, "layers.0.rope", "false"));
    assert_true(ida_config_differ(&c, &back, &d));
    assert_string_equal(d.key, "layers.0.rope");
    /* Values in range that do not go together, and options that the mixer does not have. */
    static const struct { const char *key, *value, *says; } set[] = {
        {"layers.2.rope", "true", "layers 0 to 1"},     {"layers.-1.rope", "true", "layers 0 to 1"},
        {"layers.rope", "true", "layers.N.KEY"},        {"layers.1.rope_", "true", "no option"},
        {"layers.1.hidden_size", "64", "no option"},    {"layers.1.state_size", "0", "state_size"},
        {"layers.1.basis", "fourier", "basis"},         {"layers.99999999999999999999.rope", "true", "layers 0 to 1"}};
    for (size_t i = 0; i < sizeof set / sizeof *set; i++) {
        const ida_config before = c;
        assert_int_equal(ida_config_set(&c, set[i].key, set[i].value), IDA_E_ARG);
        if (!strstr(ida_last_error(), set[i].says)) fail_msg("%s: %s", set[i].key, ida_last_error());
        assert_memory_equal(&before, &c, sizeof c);
    }
    OK(ida_config_preset("tiny", IDA_MIXER_SOFTMAX, &c));
    assert_int_equal(ida_config_set(&c, "layers.0.state_size", "8"), IDA_E_ARG);
    OK(ida_config_set(&c, "layers.0.num_key_value_heads", "3"));
    assert_int_equal(ida_config_check(&c), IDA_E_ARG);
    OK(ida_config_preset("tiny", IDA_MIXER_INTERDOMAIN, &c));
    OK(ida_config_set(&c, "layers.1.state_size", "8"));
    OK(ida_config_set(&c, "layer_mixers", "interdomain,softmax"));
    assert_int_equal(ida_config_check(&c), IDA_E_ARG);
    ida_string_free(text);
    ida_string_free(again);
    /* Files: as untrusted as the rest. */
    static const char *const bad[][2] = {
        {"[{}]", "layers must be a list"},          {"{}", "layers must be a list"},
        {"[{},5]", "layers[1] is not an object"},   {"[{},{\"x\":1}]", "is not an option"},
        {"[{},{\"kind\":\"softmax\"}]", "kind is"}, {"[{},{\"state_size\":0}]", "state_size"},
        {"[{},{\"state-size\":8}]", "is not an option"}, {"[{\"dt_min\":1},{\"dt_max\":1e-3}]", "dt_m"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char file[512];
        snprintf(file, sizeof file, "{\"vocab_size\":11,\"hidden_size\":16,\"num_hidden_layers\":2,\"num_attention_heads\":2,"
                 "\"layers\":%s}", bad[i][0]);
        assert_int_equal(ida_config_parse(file, strlen(file), "f", &c), IDA_E_FORMAT);
        if (!strstr(ida_last_error(), bad[i][1])) fail_msg("%s: %s", bad[i][0], ida_last_error());
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(absent_keys_take_the_documented_defaults),
        cmocka_unit_test(a_llama_config_is_a_softmax_model_with_hf_defaults),
        cmocka_unit_test(harmless_values_of_foreign_keys_are_taken),
        cmocka_unit_test(foreign_keys_that_change_the_result_are_refused_by_name),
        cmocka_unit_test(bad_configs_are_refused_with_their_reason),
        cmocka_unit_test(text_round_trips_for_every_mixer_and_option),
        cmocka_unit_test(a_plain_softmax_model_is_written_as_an_hf_llama),
        cmocka_unit_test(set_changes_one_field_or_says_why_not),
        cmocka_unit_test(unknown_names_list_the_known_ones),
        cmocka_unit_test(a_broken_struct_is_refused_before_any_arithmetic),
        cmocka_unit_test(layers_have_options_of_their_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
