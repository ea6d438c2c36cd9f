# SPDX-License-Identifier: Apache-2.0
"""The declarations of all metrics, as text: name, unit and reduction in a line, then the meaning.

A part of a name in angle brackets stands for any text. The units: 1 is a ratio, share or plain
number; count a number of things; reward whatever the environment's rewards are measured in. What
depends on the clock (perf/, idle/ and names that end in seconds) is timing.
"""

from __future__ import annotations

TABLE = """
train/reward_mean  reward  mean
    Mean reward of the step's trajectories as the environment gave it, before scaling,
    shaping and filters; failed ones are left out.
train/shaped_reward_mean  reward  mean
    Mean reward after scaling and shaping: what the advantage is computed from.
train/loss  nats  mean
    Value of the objective that was minimized, penalty included, mean over the step's
    minibatches.
train/policy_loss  nats  mean
    The policy-gradient part of the loss, without the KL penalty.
train/kl_to_reference  nats  mean
    Estimated KL divergence from the reference policy, mean over trained tokens, before its
    coefficient.
train/ratio_mean  1  mean
    Mean probability ratio of the current policy to the one before the update, over trained
    tokens.
train/ratio_min  1  min
    Smallest probability ratio of the current policy to the one before the update.
train/ratio_max  1  max
    Largest probability ratio of the current policy to the one before the update.
train/ratio_clipped_fraction  1  mean
    Share of trained tokens (or sequences, if the loss clips those) whose ratio lies outside
    the clip range.
train/max_log_ratio  nats  max
    Largest absolute difference of current and previous log-probs of a trained token.
train/grad_norm  1  mean
    Gradient norm before clipping, mean over the step's minibatches.
train/lr  1  last
    Learning rate of the step.
train/advantage_mean  1  mean
    Mean advantage of the trajectories that are trained.
train/advantage_std  1  mean
    Standard deviation of the advantages over the trajectories of the step; 0 for a single
    one.
train/zero_variance_groups  count  sum
    Trajectory groups of the step whose rewards are all equal, so that they give no
    gradient.
train/masked_samples  count  sum
    Samples of the step that are out of the loss and of their group's baseline (failed,
    empty, overlong, too far from the generator's log-probs).
train/prompt_tokens_mean  tokens  mean
    Mean length of the first prompt.
train/response_tokens_mean  tokens  mean
    Mean number of sampled tokens per trajectory of the step.
train/truncated_fraction  1  mean
    Share of the step's trajectories that were cut by a token or turn limit.
train/entropy  nats  mean
    Entropy of the policy before the update, mean over trained tokens.
train/entropy_estimate  nats  mean
    Mean of -logprobs over trained tokens during the update: an estimate of the entropy that is
    free of charge.
train/skipped_update  count  sum
    1 if the batch had no signal and the optimizer was left alone, else 0.
reward/<part>  reward  mean
    Mean of a named part of the reward over the step's trajectories that have it.
agent/<agent>/<value>  1  mean
    Mean of a number that an agent's environment reports, over that agent's trajectories of
    the step; reward_mean is its reward.
validation/accuracy  1  mean
    Mean over all scored validation samples of the reward part "correct", or of the reward
    where the environment names no such part; failed samples are left out.
validation/reward_mean  reward  mean
    Mean reward of the validation samples.
validation/pass_k  1  mean
    Share of validation prompts with at least one sample of accuracy above 0 among their k
    samples.
validation/response_tokens_mean  tokens  mean
    Mean number of sampled tokens of a validation sample.
validation/truncated_fraction  1  mean
    Share of validation samples that were cut by a token or turn limit.
validation/samples  count  sum
    Validation samples that were scored.
validation/failed_samples  count  sum
    Validation samples without a reward because generation or the environment failed.
validation/reward/<part>  reward  mean
    Mean of a named part of the validation reward.
validation/agent/<agent>/<value>  1  mean
    Mean of a number that an agent's environment reports in validation.
age/mean  steps  mean
    Mean age of the trained tokens: completed steps between the weights that sampled a token
    and the step that trains it.
age/max  steps  max
    Age of the oldest trained token; never above max_trajectory_age_steps.
buffer/groups  count  sum
    Finished trajectory groups that wait to be trained, after the step's batch was taken.
buffer/expired_groups  count  sum
    Trajectory groups given up because of the age limit, since the run began.
correction/ess  1  mean
    Effective sample size of the importance weights, as a share of the trained tokens.
correction/clipped_fraction  1  mean
    Share of trained tokens whose importance weight was truncated or masked.
correction/mismatch_kl  nats  mean
    Estimated KL divergence between the generator's and the learner's distribution, mean
    over trained tokens.
correction/token_mult_prob_error  1  mean
    Mean of exp(|generation_logprobs - prev_logprobs|) over trained tokens; 1 is exact
    agreement.
correction/weight_mean  1  mean
    Mean importance weight over trained tokens.
correction/weight_max  1  max
    Largest importance weight.
rollout/length_bias  1  last
    Mean number of sampled tokens of trained over that of finished samples; below 1, long
    answers are lost.
rollout/failed_groups  count  sum
    Trajectory groups given up after generation or environment failures, since the run
    began.
rollout/failed_samples  count  sum
    Samples of the step without a reward.
rollout/verifier_timeouts  count  sum
    Answers of the step that made the verifier hit its limit and scored 0.
rollout/turns  count  sum
    Completions over all trajectories of the step.
rollout/turns_mean  count  mean
    Mean number of completions per trajectory.
rollout/turns_max  count  max
    Largest number of completions of a trajectory.
rollout/response_tokens_min  tokens  min
    Sampled tokens of the shortest trajectory.
rollout/response_tokens_max  tokens  max
    Sampled tokens of the longest trajectory.
rollout/reward_min  reward  min
    Smallest reward of the step.
rollout/reward_max  reward  max
    Largest reward of the step.
tokens/generated  tokens  sum
    Tokens sampled in training rollouts since the run began; the sum of all other tokens/
    metrics.
tokens/trained  tokens  sum
    The part of tokens/generated that were trained with a gradient.
tokens/stale  tokens  sum
    The part of tokens/generated that were masked or dropped for their age.
tokens/filtered  tokens  sum
    The part of tokens/generated of trajectories that a filter took out.
tokens/zero_signal  tokens  sum
    The part of tokens/generated of trajectories whose advantage is 0.
tokens/surplus  tokens  sum
    The part of tokens/generated that were generated but not needed.
tokens/errored  tokens  sum
    The part of tokens/generated of trajectories that failed.
tokens/cancelled  tokens  sum
    The part of tokens/generated of trajectories that were called off.
tokens/lost  tokens  sum
    The part of tokens/generated that were generated before a crash and are in no
    checkpoint.
tokens/buffered  tokens  sum
    The part of tokens/generated of finished groups that wait to be trained.
tokens/in_flight  tokens  sum
    The part of tokens/generated of trajectories that are still running.
refit/seconds  seconds  max
    Duration of bringing the new weights to the generators.
refit/probe_max_abs_diff  nats  max
    Largest difference between generator's and learner's log-probs of the probe sequence
    after a refit.
perf/step_s  seconds  max
    Wall time of the step, from the end of the one before.
perf/generation_s  seconds  max
    Part of the step in which the trainer waits for or does generation.
perf/logprobs_s  seconds  max
    Part of the step spent on prev_logprobs and ref_logprobs.
perf/update_s  seconds  max
    Part of the step spent on the optimizer updates.
perf/checkpoint_s  seconds  max
    Duration of saving after the step before.
perf/generated_tokens_per_s  tokens/second  sum
    Tokens sampled in the step over its wall time.
perf/trained_tokens_per_s  tokens/second  sum
    Tokens trained in the step over its wall time.
perf/ceiling_efficiency  1  mean
    Trained tokens per second over what the same machines would reach without idle time and
    waste.
perf/speedup_over_sync  1  mean
    Estimated step time of the synchronous schedule over the measured one.
perf/per_gpu_over_sync  1  mean
    Estimated trained tokens per second and GPU over those of the synchronous schedule.
perf/straggler_stretch  1  mean
    Time in which one batch with a barrier would be generated, over its time at the
    saturated rate.
perf/exposed_generation_s  seconds  max
    Generation time of the step that did not overlap with training.
perf/peak_memory_gib  GiB  max
    Largest memory of the learner's device (or process, on a CPU) so far.
idle/trainer_s  seconds  mean
    Time in the step in which the trainer had nothing to do.
idle/trainer_s/<cause>  seconds  mean
    The part of idle/trainer_s with one cause, such as waiting_groups, refit or validation.
idle/generator_s  seconds  mean
    Time in the step in which the generators had nothing to do.
idle/generator_s/<cause>  seconds  mean
    The part of idle/generator_s with one cause.
"""
