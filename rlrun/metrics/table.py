# SPDX-License-Identifier: Apache-2.0
"""The declarations of all metrics, as text: name, unit and reduction in a line, then the meaning.

A paragraph that begins with a question mark says what to do when the values look wrong.

Words behind the reduction name the only parts that log the metric; without them any run does.

A part of a name in angle brackets stands for any text. The units: 1 is a ratio, share or plain
number; count a number of things; reward whatever the environment's rewards are measured in. What
depends on the clock (perf/, idle/ and names that end in seconds) is timing.
"""

from __future__ import annotations

TABLE = """
train/reward_mean  reward  mean
    Mean reward of the step's trajectories as the environment gave it, before scaling,
    shaping and filters; failed ones are left out, as are those that it flags.
    ? Flat at its lowest value: read answers in `rlrun view RUN_DIR`; either the verifier does not
    find them or the prompts are too hard. Falling: lower policy.optimizer.lr. Rising while
    validation/accuracy does not: the reward is exploited or the prompts are learned by heart.
train/shaped_reward_mean  reward  mean
    Mean reward after scaling and shaping: what the advantage is computed from.
train/loss  nats  mean
    Value of the objective that was minimized, penalty included, mean over the step's
    minibatches.
    ? Its level says nothing: with group-relative advantages it hovers around 0. Jumps do: look at
    train/grad_norm and correction/ess of the same step.
train/policy_loss  nats  mean
    The policy-gradient part of the loss, without the KL penalty.
train/kl_to_reference  nats  mean
    Estimated KL divergence from the reference policy, mean over trained tokens, before its
    coefficient; only with a KL penalty.
    ? Growing without end: raise loss.reference_policy_kl_penalty or lower policy.optimizer.lr.
train/ratio_mean  1  mean
    Mean probability ratio of the current policy to the one before the update, over trained
    tokens.
    ? Far from 1: too many updates per step or too large ones; raise policy.train_global_batch_size
    or lower policy.optimizer.lr.
train/ratio_clipped_fraction  1  mean
    Share of trained tokens whose gradient the clip took away; with loss=cispo, which keeps it, of
    those whose ratio the clip replaced.
    ? Above 0.2 or so, most of an update is thrown away: lower policy.optimizer.lr, or make fewer
    updates per step.
train/grad_norm  1  mean
    Gradient norm before clipping, mean over the step's minibatches.
    ? Spikes often come before a collapse: lower policy.optimizer.lr or policy.max_grad_norm. 0: no
    group had signal, see train/zero_variance_groups.
train/lr  1  last
    Learning rate of the step.
train/advantage_mean  1  mean
    Mean advantage of the trajectories that are trained, each counting once.
train/advantage_std  1  mean
    Standard deviation of the advantages of the trajectories that are trained; 0 for a single one.
train/zero_variance_groups  count  sum
    Trajectory groups generated for the step of whose samples those that are not masked have equal
    rewards, so that they give no gradient; those that dynamic sampling drops included.
    ? Most groups: prompts are too easy or too hard. Take others, more samples per prompt, or
    grpo.use_dynamic_sampling=true.
train/dropped_groups  count  sum
    Trajectory groups that dynamic sampling generated for the step and did not train.
    ? Many times the batch: dynamic sampling pays for each useful group with many; take prompts of
    another difficulty.
train/masked_samples  count  sum
    Samples of the step that are out of the loss and of their group's baseline (failed, flagged by
    the environment, empty, overlong, too old, too far from the generator's log-probs).
    ? Above a few: rollout/failed_samples tells failures from filters; see grpo.overlong_filtering
    and grpo.seq_logprob_error_threshold.
train/prompt_tokens_mean  tokens  mean
    Mean length of the first prompt over the step's scored trajectories.
train/response_tokens_mean  tokens  mean
    Mean number of sampled tokens per scored trajectory of the step.
    ? Growing into the limit: raise generation.max_new_tokens or switch on grpo.overlong_shaping.
    Shrinking while the reward stalls: rollout/length_bias, and whether a penalty is too strong.
train/truncated_fraction  1  mean
    Share of the step's scored trajectories that were cut by a token or turn limit.
    ? Above 0.1: raise generation.max_new_tokens (or grpo.max_rollout_turns), or take cut answers
    out by grpo.overlong_filtering=true.
train/entropy  nats  mean
    Entropy of the policy before the update, mean over trained tokens.
    ? Near 0: the policy explores no more; raise loss.ratio_clip_max or lower policy.optimizer.lr.
    Rising fast: it comes apart; look at answers and lower the rate.
train/skipped_update  count  sum
    1 if the batch had no signal and the optimizer was left alone, else 0.
    ? 1 in many steps: as for train/zero_variance_groups.
penalty/<kind>  count  sum
    Trajectories or turns of the step that a penalty of grpo.reward_penalties or an advantage of
    grpo.malformed_thinking_advantage or grpo.invalid_tool_call_advantage was applied to, by what
    was wrong with them.
reward/<part>  reward  mean
    Mean of a named part of the reward over the step's trajectories that have it.
validation/accuracy  1  mean
    Mean over all scored validation samples of the reward part "correct", or of the reward
    where the environment names no such part; failed samples are left out.
    ? Stalls while train/reward_mean rises: overfitting, or a reward that is exploited; read samples
    with `rlrun view RUN_DIR --validation`. Jumps about: more samples (grpo.max_val_samples,
    grpo.val_num_generations_per_prompt).
validation/reward_mean  reward  mean
    Mean reward of the scored validation samples.
validation/pass_k  1  mean
    Share of validation prompts with at least one sample of accuracy above 0 among their k
    samples; a prompt without any scored sample is left out. Only with k above 1.
validation/response_tokens_mean  tokens  mean
    Mean number of sampled tokens of a scored validation sample.
validation/truncated_fraction  1  mean
    Share of scored validation samples that were cut by a token or turn limit.
validation/samples  count  sum
    Validation samples that were scored.
validation/failed_samples  count  sum
    Validation samples without a reward because generation or the environment failed, or with one
    that measures nothing, as the environment says.
    ? Above 0: the accuracy is over fewer samples than you think; log.txt has the first error.
validation/reward/<part>  reward  mean
    Mean of a named part of the validation reward over the scored samples that have it.
age/mean  steps  mean
    Mean age of the trained tokens: completed steps between the weights that sampled a token
    and the step that trains it.
    ? Close to the bound: more is in flight than training takes; lower
    grpo.max_num_in_flight_batches_in_generation.
age/max  steps  max
    Age of the oldest trained token; never above max_trajectory_age_steps.
buffer/groups  count  sum
    Finished trajectory groups that wait to be trained, after the step's batch was taken.
buffer/expired_groups  count  sum
    Trajectory groups given up because of the age limit, since the run began.
    ? Rising: the age bound is too small for the longest answers; raise
    grpo.max_trajectory_age_steps, or take grpo.on_age_limit=hold.
correction/ess  1  mean
    Effective sample size of the importance weights, as a share of the trained tokens, or of the
    trained trajectories at correction.level=sequence or geometric. Measured even where the
    weights are not applied, as are the other correction/ metrics.
    ? Below 0.5: a few samples decide the step. Lower grpo.max_trajectory_age_steps or
    policy.optimizer.lr; at age 0 look at correction/token_mult_prob_error. The run ends if it stays
    below correction.ess_stop.
correction/clipped_fraction  1  mean
    Share of trained tokens whose importance weight was truncated or masked; of trained
    trajectories at correction.level=sequence or geometric, and with type=seq_mask_tis.
    ? Above 0.1: data is too old or engines compute otherwise; as for correction/ess.
correction/mismatch_kl  nats  mean
    Estimated KL divergence between the generator's and the learner's distribution, mean
    over trained tokens.
    ? Grows with age; a jump at age 0 is a numerical defect: compare policy.precision of both sides,
    see refit/probe_max_abs_diff. Beyond correction.mismatch_kl_stop the run ends.
correction/token_mult_prob_error  1  mean
    Mean of exp(|generation_logprobs - prev_logprobs|) over trained tokens; 1 is exact
    agreement.
    ? Above 1.05: precision or age. In float32 at age 0 it is 1.000; with bfloat16 1.01 to 1.03 is
    usual; beyond that, set grpo.seq_logprob_error_threshold=2 and look for the cause.
rollout/length_bias  1  last
    Mean number of sampled tokens of trained over that of finished and expired samples (of the
    latter, what they had when they were given up); below 1, long answers are lost.
    ? Below 0.95: long answers are expired or cut away; take grpo.on_age_limit=hold or a higher
    grpo.max_trajectory_age_steps.
rollout/failed_groups  count  sum
    Attempts at a trajectory group that failed since the run began, those lost with a generator
    included; a group that is tried again counts once per failure.
    ? Rising: the environment or an engine fails; log.txt names the error. Limits:
    grpo.max_group_attempts, grpo.max_generation_failures.
rollout/failed_samples  count  sum
    Samples of the step without a reward.
    ? Above 0: as for rollout/failed_groups; such samples get no reward and are not trained.
rollout/verifier_timeouts  count  sum
    Answers of the step that made the verifier hit its limit and scored 0.
    ? Above a few: answers that are costly to compare; they score 0. Raise env.timeout_s if right
    answers are among them.
rollout/turns  count  sum
    Completions over all trajectories of the step, failed ones included.
rollout/turns_mean  count  mean
    Mean number of completions per trajectory of the step.
rollout/turns_max  count  max
    Largest number of completions of a trajectory of the step.
rollout/response_tokens_min  tokens  min
    Sampled tokens of the shortest scored trajectory of the step.
rollout/response_tokens_max  tokens  max
    Sampled tokens of the longest scored trajectory of the step.
rollout/reward_min  reward  min
    Smallest reward of the step that is not flagged, as the environment gave it.
rollout/reward_max  reward  max
    Largest reward of the step that is not flagged, as the environment gave it.
agent/<agent>/samples  count  sum  env=gym
    Scored samples of the step that the agent ran.
agent/<agent>/reward_mean  reward  mean  env=gym
    Mean reward of its scored samples of the step, without those that are flagged.
agent/<agent>/reward/<part>  reward  mean  env=gym
    Mean of a named part of the reward over its samples that have it.
agent/<agent>/turns_mean  count  mean  env=gym
    Mean number of the policy's turns in its scored samples of the step.
agent/<agent>/turn_tokens_mean  tokens  mean  env=gym
    Sampled tokens per turn of its scored samples of the step.
agent/<agent>/stopped_fraction  1  mean  env=gym
    Share of its scored samples of the step that ended by themselves.
agent/<agent>/length_fraction  1  mean  env=gym
    Share of its scored samples of the step whose last turn was cut by a token limit.
agent/<agent>/max_turns_fraction  1  mean  env=gym
    Share of its scored samples of the step that the agent says it cut, as by its limit of turns.
agent/<agent>/flagged  count  sum  env=gym
    Samples of the step whose reward, as the environment says, measures nothing; not trained.
agent/<agent>/told/<name>  1  mean  env=gym
    Mean of a further number that the environment tells of each sample, over those that have it.
agent/<agent>/failures/<kind>  count  sum  env=gym
    Episodes that came to no reward since the run began, by kind: env_down, env_error, timeout,
    engine_lost, reward_error, cancelled (called off by the run). One that is tried again counts
    once per failure.
    ? What each kind means is in gym.md; logs of servers that the run started are in gym/ of the run
    directory.
agent/<agent>/passed_over  count  sum  env=gym
    Prompts that were not rolled out since the run began because the agent was paused.
agent/<agent>/paused  count  last  env=gym
    1 while the agent is paused after too many failures in a row, else 0.
agent/<agent>/turn_seconds  seconds  mean  env=gym
    Duration of the episodes that ended since the line before, per turn: policy, tools and
    verifier.
tokens/generated  tokens  sum
    Tokens sampled in training rollouts since the run began; the sum of all other tokens/
    metrics.
tokens/trained  tokens  sum
    The part of tokens/generated of trained trajectories whose advantage is not 0.
tokens/stale  tokens  sum
    The part of tokens/generated that were masked or dropped for their age.
    ? A large share: raise grpo.max_trajectory_age_steps, or lower what is in flight.
tokens/filtered  tokens  sum
    The part of tokens/generated of trajectories that a filter took out.
tokens/zero_signal  tokens  sum
    The part of tokens/generated of trajectories whose advantage or weight is 0: no gradient from
    the policy term (a KL penalty still has one).
    ? A large share of tokens/generated: as for train/zero_variance_groups.
tokens/surplus  tokens  sum
    The part of tokens/generated that were generated but not needed.
tokens/errored  tokens  sum
    The part of tokens/generated of trajectories that failed.
tokens/cancelled  tokens  sum
    The part of tokens/generated of trajectories that were called off.
tokens/lost  tokens  sum
    The part of tokens/generated that were generated before a crash and are in no
    checkpoint.
    ? Large: save more often (checkpointing.save_period).
tokens/buffered  tokens  sum
    The part of tokens/generated of finished groups that wait to be trained.
tokens/in_flight  tokens  sum
    The part of tokens/generated of trajectories that are still running.
refit/seconds  seconds  max
    Duration of bringing the new weights to the generators.
    ? A notable share of perf/step_s: see the ways of refitting in generation.md.
refit/probe_max_abs_diff  nats  max  separate engines
    Largest difference between generator's and learner's log-probs of the probe sequence after a
    refit.
    ? Beyond the tolerance the run ends: the engine does not compute with the learner's weights.
    Causes are listed in generation.md.
perf/step_s  seconds  max
    Wall time of the step, from the wait for its batch to the end of its validation; logging and
    saving come after it.
    ? Slow: `rlrun report RUN_DIR` says what it was spent on and what to change first.
perf/generation_s  seconds  max
    Part of the step in which at least one training rollout was running, its environment included.
perf/logprobs_s  seconds  max
    Part of the step spent on making the batch: mostly prev_logprobs and ref_logprobs.
perf/update_s  seconds  max
    Part of the step spent on the optimizer updates.
perf/checkpoint_s  seconds  max
    Time for which saving after the step before held up the run.
    ? Notable: raise checkpointing.save_period or take checkpointing.layout=sharded.
perf/generated_tokens_per_s  tokens/second  sum
    Tokens of the trajectory groups that finished during the step, over perf/generation_s.
perf/trained_tokens_per_s  tokens/second  sum
    Sampled tokens of the trained trajectories whose advantage is not 0, over perf/step_s without
    its validation; 0 if the update was skipped.
perf/ceiling_efficiency  1  mean  asynchronous schedules
    Tokens trained with a gradient per second over what the same machines could train if nothing
    ever waited and no token was wasted.
    ? Below 0.5: idle/ says who waits, tokens/ what is wasted; `rlrun simulate --from RUN_DIR` names
    better settings.
perf/speedup_over_sync  1  mean  asynchronous schedules
    Time in which learner and generator would take turns for this batch, each on its own part of
    the machine, over the measured step time; waiting for stragglers would come on top of it.
perf/per_gpu_over_sync  1  mean  asynchronous schedules
    As perf/speedup_over_sync, but with turns in which each has the whole machine.
    ? Below 1: turns on the whole machine would be faster here; take grpo=sync.
perf/straggler_stretch  1  mean  asynchronous schedules
    Longest over mean number of sampled tokens per trajectory of the batch: how much longer than
    the mean a schedule in turns waits for the last one, at most.
perf/exposed_generation_s  seconds  max
    Time in the step in which the trainer waited for its batch.
perf/peak_memory_gib  GiB  max
    Largest memory that a rank of the learner had allocated on its GPU so far; on a CPU, largest
    resident memory of its process.
    ? Close to the device's: lower policy.train_micro_batch_tokens or policy.logprob_chunk_tokens,
    or take policy.activation_checkpointing=true.
idle/trainer_s  seconds  mean
    Time in the step in which the trainer waited for something to train; validation is not
    counted.
idle/trainer_s/waiting_groups  seconds  mean
    The part of idle/trainer_s in which too few groups had finished: all of it in a synchronous
    schedule.
    ? Most of the step, generators busy: generation is the bottleneck; give it more of the machine,
    or shorten answers.
idle/trainer_s/<cause>  seconds  mean  asynchronous schedules
    The part of idle/trainer_s with another cause: age_limit (enough groups had finished, but
    running ones would have passed the age bound) or pause (running ones had to end before an
    update).
    ? age_limit: raise grpo.max_trajectory_age_steps. pause: grpo.in_flight_weight_updates=true.
idle/generator_s  seconds  mean
    Time in the step in which no training rollout was running, validation apart.
idle/generator_s/training  seconds  mean
    The part of idle/generator_s in which nothing could begin before the learner had trained and
    published: all of it.
    ? Most of the step: the learner is the bottleneck; give it more of the machine, or raise the age
    and what is in flight.
"""
