import argparse
import json
import os

import keras
import tensorflow as tf

parser = argparse.ArgumentParser()
parser.add_argument("--data")
parser.add_argument("--checkpoints")
parser.add_argument("--epochs", type=int, default=3)
arguments = parser.parse_args()
worker = json.loads(os.environ.get("TF_CONFIG", "{}")).get("task", {"index": 0})["index"]
strategy = tf.distribute.MultiWorkerMirroredStrategy()  # reads TF_CONFIG


def read():
    import numpy as np

    with np.load(f"{arguments.data}/train.npz") as train:
        rows = tf.data.Dataset.from_tensor_slices((train["images"], train["labels"]))
    return rows.shuffle(1500, seed=1).batch(64)


options = tf.data.Options()  # each worker takes its part of every batch
options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
batches = strategy.experimental_distribute_dataset(read().with_options(options))
with strategy.scope():
    inputs = keras.Input((8, 8, 1), name="image")
    x = keras.layers.Flatten()(keras.layers.Rescaling(1 / 255)(inputs))
    x = keras.layers.Dense(64, activation="relu")(x)
    model = keras.Model(inputs, keras.layers.Dense(10)(x))
    optimizer = keras.optimizers.Adam(0.003)
    optimizer.build(model.trainable_variables)


def replica_step(images, labels):
    with tf.GradientTape() as tape:
        losses = keras.losses.sparse_categorical_crossentropy(labels, model(images), from_logits=True)
        loss = tf.reduce_sum(losses) / 64
    optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    return loss


@tf.function
def step(images, labels):
    return strategy.reduce("SUM", strategy.run(replica_step, (images, labels)), axis=None)


epoch = tf.Variable(0, dtype=tf.int64)
checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer, epoch=epoch)
path = os.path.join(arguments.checkpoints, "last")
if os.path.exists(path + ".index"):
    checkpoint.read(path)
while int(epoch) < arguments.epochs:
    losses = [float(step(*batch)) for batch in batches]
    epoch.assign_add(1)
    print(f"epoch {int(epoch)}: loss {sum(losses) / len(losses):.3f}", flush=True)
    if worker == 0:
        checkpoint.write(path)
if worker == 0:
    model.save(f"{arguments.data}/model.keras")
